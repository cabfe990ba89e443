"""Special tokens that a text spells out, taken as the text they are.

Without this a text that holds `[SEP]` has a separator in it, as in transformers. Only the template puts special tokens
in then; a text cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from service.errors import StartupError


def take_as_text(path: Path, tokenizer: tokenizers.Tokenizer, frame: Iterable[int], prompts: Mapping[str, str]) -> None:
    """Let no text have special tokens. frame: ids that the template puts around one.

    Raises StartupError when a text can still have one of the frame, or a prompt has special tokens on purpose.
    """
    as_tokens = {name: tokenizer.encode(prompt).ids for name, prompt in prompts.items()}
    added = tokenizer.get_added_tokens_decoder()
    framing = [added[index] for index in dict.fromkeys(frame) if index in added]
    tokenizer.add_special_tokens([_special(token) for token in framing])
    tokenizer.encode_special_tokens = True
    if isinstance(tokenizer.model, models.Unigram):
        _break_up(tokenizer, [token.content for token in (*added.values(), *framing) if token.special])
    for index, token in added.items():
        if token in framing and index in tokenizer.encode(token.content, add_special_tokens=False).ids:
            raise StartupError(f"{path}: special tokens cannot be taken as text: {token.content!r} is a word as well")
    for name, prompt in prompts.items():
        if tokenizer.encode(prompt).ids != as_tokens[name]:
            raise StartupError(
                f"text.prompts.{name}: has special tokens, which `text` in QKV_SPECIAL_TOKENS takes as mere text"
            )


def _special(token: AddedToken) -> AddedToken:
    return AddedToken(**(token.__getstate__() | {"special": True}))


def _break_up(tokenizer: tokenizers.Tokenizer, contents: Iterable[str]) -> None:
    """The vocabulary of such a model has special tokens among its pieces: none may be met whole."""
    starts = [f"{re.escape(content[0])}(?={re.escape(content[1:])})" for content in contents if len(content) > 1]
    split = pre_tokenizers.Split(tokenizers.Regex("|".join(starts)), "isolated")
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split] if before is None else [before, split])
