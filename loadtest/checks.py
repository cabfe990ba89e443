"""What a right reply is. Pure functions: bytes in, arrays out; every fault is a BadReply that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from loadtest.errors import BadReply

Array = NDArray[np.float64]
MAX_NORM_ERROR = 1e-3
MAX_ROW_SUM_ERROR = 1e-4
_OVERLOAD = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
_MAX_DETAIL_CHARS = 200


def check_status(status: int, body: bytes) -> None:
    """Raise BadReply unless it is 200; with the server's own words."""
    if status != HTTPStatus.OK:
        raise BadReply(f"status {status}", _words(body), is_overload=status in _OVERLOAD)


def read_items(body: bytes, count: int) -> list[dict[str, Any]]:
    """The `data` of a reply to `count` inputs, in their order. Raises BadReply: not JSON, wrong shape, count, order."""
    items = _load(body)
    items = items.get("data") if isinstance(items, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadReply("the reply has no list of objects `data`")
    if len(items) != count:
        raise BadReply("wrong number of vectors", f"{len(items)} for {count} inputs")
    indices = [item.get("index") for item in items]
    # `false` is no index, although it equals 0.
    if not all(type(index) is int for index in indices) or indices != list(range(count)):
        raise BadReply("the indices of `data` are not in order", str(indices))
    return items


def read_vectors(items: list[dict[str, Any]]) -> Array:
    """The embeddings of all items. -> [count, dim]. Raises BadReply: not numbers, not finite, unequal dimensions."""
    return stack([_numbers(item.get("embedding"), "embedding") for item in items])


def read_scores(items: list[dict[str, Any]]) -> Array:
    """The scores of all items, by the names of their labels. -> [count, labels]

    Raises BadReply: no scores, labels that repeat or differ, not the best first.
    """
    rows = [_by_label(item.get("scores")) for item in items]
    if len({tuple(row) for row in rows}) != 1:
        raise BadReply("the labels of two texts differ")
    return stack([_numbers(list(row.values()), "scores") for row in rows])


def _by_label(scores: object) -> dict[str, object]:
    if not isinstance(scores, list) or not all(isinstance(one, dict) for one in scores):
        raise BadReply("an item has no list of objects `scores`")
    labels = [one.get("label") for one in scores]
    if not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
        raise BadReply("the labels of an item are not names, each once", str(labels))
    _check_falling([one.get("score") for one in scores])
    return {one["label"]: one.get("score") for one in sorted(scores, key=lambda one: str(one["label"]))}


def read_ranks(body: bytes, count: int) -> Array:
    """The scores of `count` documents, in the order in which they were sent. -> [count, 1]

    Raises BadReply: not JSON, a document that is missing or there twice, not the best first.
    """
    results = _load(body)
    results = results.get("results") if isinstance(results, dict) else None
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise BadReply("the reply has no list of objects `results`")
    indices = [result.get("index") for result in results]
    if not all(type(index) is int for index in indices) or sorted(indices) != list(range(count)):
        raise BadReply("`results` are not of every document, each once", str(indices))
    scores = _numbers([result.get("relevance_score") for result in results], "relevance_score")
    _check_falling(scores.tolist())
    found = np.empty((count, 1))
    found[indices, 0] = scores
    return found


def _check_falling(scores: list[Any]) -> None:
    numbers = _numbers(scores, "scores")
    if (np.diff(numbers) > 0).any():
        raise BadReply("the best does not come first", str(scores))


def stack(vectors: Sequence[Array]) -> Array:
    """Vectors as rows. vectors: [dim] each -> [count, dim]. Raises BadReply: not vectors, unequal dimensions."""
    shapes = sorted({vector.shape for vector in vectors})
    if len(shapes) != 1 or len(shapes[0]) != 1 or not shapes[0][0]:
        raise BadReply("the embeddings are not vectors of one dimension", " and ".join(map(str, shapes)))
    return np.stack(vectors)


def check_vectors(vectors: Array, *, dim: int, is_unit: bool) -> None:
    """Raise BadReply unless they have the known dimension and, where known ones have it, the norm 1.

    vectors: [count, dim]
    """
    if vectors.shape[1] != dim:
        raise BadReply("wrong dimension", f"{vectors.shape[1]}, {dim} in the known answers")
    if is_unit and not are_units(vectors):
        norms = np.linalg.norm(vectors, axis=1)
        raise BadReply("a vector's norm is not 1", f"{norms[np.argmax(np.abs(norms - 1))]:.6f}")


def are_units(vectors: Array) -> bool:
    """True when all norms are 1. vectors: [count, dim]"""
    return bool(np.all(np.abs(np.linalg.norm(vectors, axis=1) - 1) <= MAX_NORM_ERROR))


def read_attention(item: dict[str, Any]) -> list[Array]:
    """The attention weights of one item, layer by layer. -> [heads, seq, seq] each

    Raises BadReply: missing, of another shape than declared or than the tokens demand, not finite, not probabilities.
    """
    layers = item.get("attention")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, dict) for layer in layers):
        raise BadReply("an item has no attention")
    return [_layer(layer, item.get("num_tokens")) for layer in layers]


def _layer(layer: dict[str, Any], num_tokens: object) -> Array:
    weights = _numbers(layer.get("weights"), "attention")
    if list(weights.shape) != layer.get("shape"):
        raise BadReply("attention is not of the shape that it declares", f"{weights.shape}, {layer.get('shape')}")
    if weights.ndim != 3 or weights.shape[1:] != (num_tokens, num_tokens):
        raise BadReply("attention does not fit the tokens", f"{weights.shape} for {num_tokens} tokens")
    worst = float(np.abs(weights.sum(axis=2) - 1).max())
    if weights.min() < 0 or worst > MAX_ROW_SUM_ERROR:
        raise BadReply("rows of attention are not probabilities", f"a sum is off by {worst:.2g}")
    return weights


def _numbers(values: object, name: str) -> Array:
    """Nested lists as an array. -> the same shape"""
    if not isinstance(values, list):
        raise BadReply(f"{name}: is not a list of numbers", type(values).__name__)
    try:
        array = np.array(values)
        # JSON has no NaN: servers write null for it.
        array = array.astype(np.float64) if array.dtype.kind in "fiuO" else array
    except OverflowError:
        raise BadReply(f"{name}: holds numbers that no float64 holds") from None
    except (ValueError, TypeError):
        raise BadReply(f"{name}: is not a list of numbers", "ragged, or of something else") from None
    if array.dtype != np.float64:
        raise BadReply(f"{name}: is not a list of numbers", str(array.dtype))
    if not np.isfinite(array).all():
        raise BadReply(f"{name}: holds numbers that are not finite")
    return array


def _load(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        # Slower, but it takes the bare NaN that some servers write, so that the fault gets its right name.
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadReply("the reply is not JSON", f"{error}, {len(body)} bytes") from None


def _words(body: bytes) -> str:
    """The message of an error body of any dialect, or the body itself, shortened."""
    try:
        content = orjson.loads(body)
        error = content["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return " ".join(text.split())[:_MAX_DETAIL_CHARS]
