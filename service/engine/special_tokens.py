"""Special tokens that a text spells out, read as the text they are.

Otherwise a text that holds `[SEP]` has a separator in it, as in transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from service.engine.token_ids import Frame
from service.errors import StartupError


def read_special_as_text(path: Path, tokenizer: tokenizers.Tokenizer, frame: Frame, prompts: Mapping[str, str]) -> None:
    """From now on the names of special tokens are text like any other; only the template gives them.

    Raises StartupError for a prompt that would lose its own by this, and for a token of the frame that a text can
    still have: a word that frames texts.
    """
    before = [tokenizer.encode(prompt).ids for prompt in prompts.values()]
    added = tokenizer.get_added_tokens_decoder()
    framing = {index: added[index] for index in frame.prefix + frame.suffix if index in added}
    tokenizer.add_special_tokens([_special(token) for token in framing.values()])
    tokenizer.encode_special_tokens = True
    if isinstance(tokenizer.model, models.Unigram):
        _break_up(tokenizer, [token.content for token in (*added.values(), *framing.values()) if token.special])
    for index, token in framing.items():
        if index in tokenizer.encode(token.content, add_special_tokens=False).ids:
            told = f"{token.content!r} frames texts and is a word as well"
            raise StartupError(f"{path}: {told}: the setting special_tokens=text cannot be had")
    for (name, prompt), ids in zip(prompts.items(), before, strict=True):
        if tokenizer.encode(prompt).ids != ids:
            raise StartupError(
                f"text.prompts: {name!r} has special tokens, the setting special_tokens=text allows none"
            )


def _special(token: AddedToken) -> AddedToken:
    return AddedToken(**(token.__getstate__() | {"special": True}))


def _break_up(tokenizer: tokenizers.Tokenizer, contents: Iterable[str]) -> None:
    """Such a model has its special tokens among its pieces, with the best score: none may be met whole."""
    starts = [f"{re.escape(content[0])}(?={re.escape(content[1:])})" for content in contents if len(content) > 1]
    if not starts:
        return
    split = pre_tokenizers.Split(tokenizers.Regex("|".join(starts)), "isolated")
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split] if before is None else [before, split])
