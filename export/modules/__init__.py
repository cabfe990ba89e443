"""A module or a ready graph becomes a bundle: traced or read, held to its signature, proved against itself."""
