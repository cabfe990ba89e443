"""Kinds of requests, by the length of their texts in words: any model may be behind the URL."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.corpus import read_corpus
from loadtest.errors import LoadTestError
from loadtest.target import CLASSIFY, EMBEDDINGS, ENCODE, RERANK

# The worst hundred words in a row of the corpus, in a WordPiece vocabulary of 30,000, and room for special tokens.
TOKENS_PER_WORD = 2.5
DEFAULT_MAX_WORDS = 100
_WORD = re.compile(r"[(\"'`]?[A-Za-z][a-z]*(?:['-][a-z]+)*[)\"'`]?[.,;:?!]?")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request. num_texts: in each; weight: how often beside the others; num_words: length of a text.

    path: the route that answers it.
    """

    num_words: Callable[[random.Random], int]
    weight: int
    num_texts: int = 1
    path: str = EMBEDDINGS


def _mixed(rng: random.Random) -> int:
    """Lognormal: half of the texts have at most twenty words, one in twenty has ninety or more."""
    return max(3, round(rng.lognormvariate(math.log(20), 0.9)))


KINDS = {
    "short": Kind(lambda rng: rng.randint(5, 10), weight=4),
    "passage": Kind(lambda rng: rng.randint(70, 100), weight=3),
    "mixed": Kind(_mixed, weight=4),
    "list32": Kind(_mixed, weight=1, num_texts=32),
    "attention": Kind(_mixed, weight=1, path=ENCODE),
    "classify": Kind(_mixed, weight=4, path=CLASSIFY),
    "rerank": Kind(_mixed, weight=1, num_texts=8, path=RERANK),
}


def max_words(max_input_tokens: int | None) -> int:
    """The longest text that surely fits into a model's limit; None = the limit is not known."""
    return DEFAULT_MAX_WORDS if max_input_tokens is None else max(1, int(max_input_tokens / TOKENS_PER_WORD))


def make_texts(kind: Kind, count: int, *, longest: int, seed: str) -> list[str]:
    """`count` different texts of a kind, none of more than `longest` words; the same seed gives the same texts.

    Raises LoadTestError when there are not so many.
    """
    rng = random.Random(seed)
    words = [word for word in read_corpus().split() if _WORD.fullmatch(word)]
    texts: dict[str, None] = {}
    for _ in range(20 * count):
        if len(texts) == count:
            return list(texts)
        num_words = min(kind.num_words(rng), longest)
        first = rng.randrange(len(words) - num_words)
        texts[" ".join(words[first : first + num_words])] = None
    raise LoadTestError(f"there are no {count} different texts of at most {longest} words")
