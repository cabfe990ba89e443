"""Models of other people's making, exported and served as a user would."""
