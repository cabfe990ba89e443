"""Text encoders that are not built here: loaded by transformers, traced by PyTorch, held to the very model."""
