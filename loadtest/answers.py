"""Known answers: taken one text at a time before the load, compared with what comes back under it.

This is what finds a reply that looks right and is another text's: a swapped order, a neighbour's vector, a stale one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.checks import Array, are_units
from loadtest.errors import BadReply

MAX_ATTENTION_DELTA = 1e-4
# Different texts must differ by far more than an answer may differ from itself, or an order cannot be seen.
_MIN_DISTINCTION = 10


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Texts of one kind with their answers. vectors: [texts, dim]; attention: layers of [heads, seq, seq] by text."""

    texts: tuple[str, ...]
    vectors: Array
    attention: tuple[list[Array], ...] | None = None

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return int(self.vectors.shape[1])

    @property
    def is_unit(self) -> bool:
        """True when the server normalises."""
        return are_units(self.vectors)


def check_distinct(known: KnownAnswers, max_delta: float) -> None:
    """Raise BadReply when two texts have the same vector: then no comparison would prove anything."""
    for row in range(1, len(known.texts)):
        nearest = float(_deltas(known.vectors[:row], known.vectors[row]).min())
        if nearest <= _MIN_DISTINCTION * max_delta:
            raise BadReply("different texts have the same vector", f"max |Δ| {nearest:.2g}")


def compare_vectors(vectors: Array, rows: Sequence[int], known: KnownAnswers, *, max_delta: float) -> None:
    """Raise BadReply unless each vector is that of its text, within `max_delta` of its norm.

    vectors: [count, dim]; rows: for each, the number of its text in `known`.
    """
    for position, (vector, row) in enumerate(zip(vectors, rows, strict=True)):
        deltas = _deltas(known.vectors, vector)
        if deltas[row] <= max_delta:
            continue
        other = int(deltas.argmin())
        if deltas[other] <= max_delta:
            raise BadReply(
                "a vector is that of another text", f"at position {position}, it is that of {_place(rows, other)}"
            )
        raise BadReply(
            "a vector differs from its known answer",
            f"at position {position}, max |Δ| {deltas[row]:.2g} where {max_delta:.2g} is allowed, "
            f"cosine {_cosine(vector, known.vectors[row]):.6f}",
        )


def compare_attention(layers: Sequence[Array], known: Sequence[Array]) -> None:
    """Raise BadReply unless the weights are the known ones. layers, known: [heads, seq, seq] each"""
    if [layer.shape for layer in layers] != [layer.shape for layer in known]:
        raise BadReply("attention differs from its known answer", "another shape")
    worst = max(float(np.abs(layer - other).max()) for layer, other in zip(layers, known, strict=True))
    if worst > MAX_ATTENTION_DELTA:
        raise BadReply(
            "attention differs from its known answer", f"max |Δ| {worst:.2g}, {MAX_ATTENTION_DELTA:.2g} allowed"
        )


def _deltas(vectors: Array, vector: Array) -> Array:
    """Largest difference to each of the vectors, in units of their norms. vectors: [texts, dim] -> [texts]"""
    norms = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float64).tiny)
    deltas: Array = np.abs(vectors - vector).max(axis=1) / norms
    return deltas


def _cosine(left: Array, right: Array) -> float:
    return float(left @ right / max(np.linalg.norm(left) * np.linalg.norm(right), np.finfo(np.float64).tiny))


def _place(rows: Sequence[int], other: int) -> str:
    return f"position {list(rows).index(other)}" if other in rows else "a text that is not in this request"
