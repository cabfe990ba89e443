"""A tokenizer.json as the service uses it: nothing is cut or padded, and special tokens are what the settings say."""

from __future__ import annotations

from collections.abc import Mapping
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


def read_special_as_text(tokenizer: tokenizers.Tokenizer, prompts: Mapping[str, str]) -> None:
    """From now on the names of special tokens are text like any other; only the template gives them.

    Raises StartupError for a prompt that would lose its own by this.
    """
    before = [tokenizer.encode(prompt).ids for prompt in prompts.values()]
    tokenizer.encode_special_tokens = True
    for (name, prompt), ids in zip(prompts.items(), before, strict=True):
        if tokenizer.encode(prompt).ids != ids:
            raise StartupError(
                f"text.prompts: {name!r} has special tokens, the setting special_tokens=text allows none"
            )
