"""A tokenizer.json as the service uses it: nothing is cut or padded."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from service.errors import StartupError


def load_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Read the file; what it says of truncation and padding does not count. Raises StartupError."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises nothing narrower
        raise StartupError(f"{path}: cannot be read as a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
