"""The stages between a parsed request and its answer: tokenize, batch, run, select."""
