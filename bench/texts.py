"""Real text of a wanted length: seeded slices of the standard library's docstrings, measured in the model's tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from loadtest.corpus import read_corpus

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


def _lognormal(rng: random.Random) -> int:
    return round(rng.lognormvariate(math.log(40), 0.85))


LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "passage": lambda rng: rng.randint(100, 200),
    "short": lambda rng: rng.randint(8, 14),
    "mixed": lambda rng: min(max(_lognormal(rng), 5), 256),
}


def make_texts(kind: str, count: int, tokenizer_file: Path, *, seed: int = 0) -> list[str]:
    """`count` texts of the lengths of that kind, special tokens included; the same seed gives the same texts.

    kind: `passage` 100 to 200 tokens, `short` 8 to 14, `mixed` lognormal around 40, from 5 to 256.
    """
    tokenizer = open_tokenizer(tokenizer_file)
    rng = random.Random(f"{kind} {seed}")
    corpus = read_corpus()
    offsets = tokenizer.encode(corpus, add_special_tokens=False).offsets
    starts = [i for i in range(len(offsets) - 400) if offsets[i][0] != offsets[i - 1][1]]
    texts = []
    for _ in range(count):
        first = rng.choice(starts)
        last = first + LENGTHS[kind](rng) - NUM_SPECIAL_TOKENS - 1
        texts.append(corpus[offsets[first][0] : offsets[last][1]])
    return texts


def open_tokenizer(file: Path) -> Tokenizer:
    """The bundle's tokenizer without the truncation and padding that its file may hold."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
