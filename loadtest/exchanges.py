"""What each route is asked, and what of its reply is compared: a vector for each text, or its scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from loadtest import checks
from loadtest.target import CLASSIFY, EMBEDDINGS, ENCODE, RERANK
from loadtest.texts import Kind

# Of every request: what is known of a document is its score beside this one.
QUERY = "How is a value read from a file?"


@dataclass(frozen=True, slots=True)
class Answer:
    """A well-formed reply. vectors: [count, dim], or [count, scores]; attention: layers of [heads, seq, seq], None =
    not wanted."""

    vectors: checks.Array
    attention: list[checks.Array] | None = None


def write_request(kind: Kind, texts: Sequence[str], model: str) -> bytes:
    """The body of a request."""
    return orjson.dumps({"model": model, **_CONTENTS[kind.path](texts)})


def read_reply(kind: Kind, body: bytes, count: int) -> Answer:
    """The reply to `count` texts. Raises BadReply unless it is well-formed."""
    if kind.path == RERANK:
        return Answer(checks.read_ranks(body, count))
    items = checks.read_items(body, count)
    if kind.path == CLASSIFY:
        return Answer(checks.read_scores(items))
    return Answer(checks.read_vectors(items), checks.read_attention(items[0]) if kind.path == ENCODE else None)


def num_words_beside(kind: Kind) -> int:
    """Words that each text of a request shares the model's limit with."""
    return len(QUERY.split()) if kind.path == RERANK else 0


def least_norm(kind: Kind) -> float:
    """What the difference of two answers is held against at least: a score may be 0 by chance, a vector is not."""
    return 1.0 if kind.path in (CLASSIFY, RERANK) else float(np.finfo(np.float64).tiny)


def _input(texts: Sequence[str]) -> Any:
    return texts[0] if len(texts) == 1 else texts


_CONTENTS: Mapping[str, Callable[[Sequence[str]], dict[str, Any]]] = {
    EMBEDDINGS: lambda texts: {"input": _input(texts)},
    ENCODE: lambda texts: {
        "input": _input(texts),
        "include": ["embedding", "attention"],
        "attention": {"layers": "last", "heads": "mean"},
    },
    # Raw scores: those of a model that is sure are all 1.
    CLASSIFY: lambda texts: {"input": _input(texts), "raw_scores": True},
    RERANK: lambda texts: {"query": QUERY, "documents": list(texts), "raw_scores": True},
}
