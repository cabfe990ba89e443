"""What classifiers answer: the labels of a text, or documents, the best first. Pure functions, and their JSON.

Knows no HTTP; how an answer with arrays is written is `formats`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.engine.formats import Json, dump, rows_of, usage_of
from service.engine.request import EncodedItem, EncodeResult
from service.engine.scores import best_first
from service.manifest import HeadSpec
from service.runners.base import Array

# `{"label":"","score":0.99999994},`, its label aside; `{"index":1000,"relevance_score":0.99999994,"num_tokens":100,
# "truncated":false,"document":{"text":""}},`, its text aside.
_BYTES_PER_LABEL = 32
_BYTES_PER_RESULT = 112


def classify_json(result: EncodeResult, model: str, top_k: int | None) -> bytes:
    """The reply of `/v1/classify`: every label with its score, or the `top_k` best."""
    data = [{"index": index, **class_fields(item, result.labels, top_k)} for index, item in enumerate(result.items)]
    return dump({"object": "list", "model": model, "data": rows_of(data), "usage": usage_of(result)})


def class_fields(item: EncodedItem, labels: Sequence[str], top_k: int | None = None) -> Json:
    """One item as `/v1/classify` has it, for `dump`. top_k: None = all labels."""
    return {"scores": _best_labels(item, labels, top_k), **_counts(item)}


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Documents in their order.

    scores: `[documents]` float32. order: `[n]` int64, which of them are told. documents: None = they are not told.
    """

    scores: Array
    order: Array
    documents: Sequence[str] | None


def rerank_json(result: EncodeResult, model: str, ranking: Ranking) -> bytes:
    """The reply of `/v1/rerank`."""
    documents = ranking.documents
    results = [
        {
            "index": index,
            "relevance_score": ranking.scores[index],
            **_counts(result.items[index]),
            **({} if documents is None else {"document": {"text": documents[index]}}),
        }
        for index in ranking.order.tolist()
    ]
    return dump({"object": "list", "model": model, "results": rows_of(results), "usage": usage_of(result)})


def rank(items: Sequence[EncodedItem], documents: Sequence[str]) -> tuple[Array, Array]:
    """Documents in falling order. -> logits `[documents]` float32, order `[documents]` int64

    items: with one logit each: scores that an activation has pressed against 1 no longer tell which is better.
    The same document has one logit, the first one's: between two calls of the model the last bit may differ, and would
    change their order from request to request.
    """
    first: dict[str, int] = {}
    found = (items[first.setdefault(document, index)].classes for index, document in enumerate(documents))
    logits = np.concatenate([values for values in found if values is not None])
    return logits, best_first(logits)


def classify_bytes(num_items: int, head: HeadSpec, top_k: int | None) -> float:
    """About how long the reply of `/v1/classify` will be, at most."""
    label = max(len(label) for label in head.labels) + _BYTES_PER_LABEL
    return num_items * (_BYTES_PER_RESULT + label * min(len(head.labels), top_k or len(head.labels)))


def rerank_bytes(documents: Sequence[str], has_documents: bool) -> float:
    """About how long the reply of `/v1/rerank` will be, at most: a character takes 4 bytes or an escape of 6."""
    num_chars = sum(map(len, documents)) if has_documents else 0
    return len(documents) * _BYTES_PER_RESULT + 6 * num_chars


def _best_labels(item: EncodedItem, labels: Sequence[str], top_k: int | None) -> list[Json]:
    scores = item.classes
    assert scores is not None
    order = best_first(scores, top_k).tolist()
    return [{"label": labels[index], "score": scores[index]} for index in order]


def _counts(item: EncodedItem) -> Json:
    return {"num_tokens": item.num_tokens, "truncated": item.truncated}
