"""Prompts beside the limit: whether they leave room for a text."""

from __future__ import annotations

from tokenizers import Tokenizer

from export.texts.read.modules import PIPELINE
from export.texts.read.pipeline import Limit, Prompts
from export.texts.read.source import SourceDirectory
from export.texts.read.tokenizer import TokenizerFile


def check_prompts(source: SourceDirectory, tokenizer: TokenizerFile, prompts: Prompts, limit: Limit) -> tuple[str, ...]:
    """What to tell of prompts that fill the limit: every text behind them would be refused, or give the same vector.

    Fault: the default one does.
    """
    counter = Tokenizer.from_buffer(tokenizer.content)
    counter.no_truncation()
    counter.no_padding()
    told = []
    for name, text in prompts.texts.items():
        if not text or (num_tokens := len(counter.encode(text).ids)) < limit.max_tokens:
            continue
        fault = (
            f"{PIPELINE}: prompts: {name}: it takes {num_tokens} tokens, special ones included, and the limit is "
            f"{limit.max_tokens} ({limit.source}): no text has room behind it"
        )
        if name == prompts.default:
            source.faults.append(f"{fault}, and it is the default")
        else:
            told.append(fault)
    return tuple(told)
