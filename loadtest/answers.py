"""Known answers: taken one text at a time before the load, compared with what comes back under it.

This is what finds a reply that looks right and is another text's: a swapped order, a neighbour's vector, a stale one.
Requests whose answer is not known are held to the first well-formed one: this finds a server that
disagrees with itself.
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
    """Texts of one kind with their answers. vectors: [texts, dim]; attention: layers of [heads, seq, seq] by text.

    texts: empty where no request will be made of them. origin: where the answers are from, in words.
    least_norm: differences are held against the norm of a vector, or this where it is smaller: of scores, 1.
    """

    texts: tuple[str, ...]
    vectors: Array
    attention: tuple[list[Array], ...] | None = None
    origin: str = "its known answer"
    least_norm: float = float(np.finfo(np.float64).tiny)

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return int(self.vectors.shape[1])

    @property
    def is_unit(self) -> bool:
        """True when the server normalises."""
        return are_units(self.vectors)

    def deltas(self, vector: Array, rows: Sequence[int] | slice = slice(None)) -> Array:
        """Largest difference to each of the vectors, or of some rows, in units of their norms. -> [rows]

        vector: [dim], or [rows, dim]
        """
        wanted = self.vectors[rows if isinstance(rows, slice) else list(rows)]
        norms = np.maximum(np.linalg.norm(wanted, axis=1), self.least_norm)
        found: Array = np.abs(vector - wanted).max(axis=1) / norms
        return found


def check_distinct(known: KnownAnswers, max_delta: float) -> None:
    """Raise BadReply when two texts have the same vector: then no comparison would prove anything."""
    for row in range(1, len(known.texts)):
        nearest = float(known.deltas(known.vectors[row], slice(row)).min())
        if nearest <= _MIN_DISTINCTION * max_delta:
            raise BadReply("different texts have the same vector", f"max |Δ| {nearest:.2g}")


def compare_vectors(vectors: Array, rows: Sequence[int], known: KnownAnswers, *, max_delta: float) -> None:
    """Raise BadReply unless each vector is that of its text, within `max_delta` of its norm.

    vectors: [count, dim]; rows: for each, the number of its text in `known`.
    """
    deltas = known.deltas(vectors, rows)  # [count]
    if deltas.max() <= max_delta:
        return
    position = int(np.argmax(deltas > max_delta))
    others = known.deltas(vectors[position])
    other = int(others.argmin())
    if others[other] <= max_delta:
        raise BadReply(
            "a vector is that of another text", f"at position {position}, it is that of {_place(rows, other)}"
        )
    raise BadReply(
        f"a vector differs from {known.origin}",
        f"at position {position}, max |Δ| {deltas[position]:.2g} where {max_delta:.2g} is allowed, "
        f"cosine {_cosine(vectors[position], known.vectors[rows[position]]):.6f}",
    )


def compare_attention(layers: Sequence[Array], row: int, known: KnownAnswers) -> None:
    """Raise BadReply unless the weights are those of that text; where none are known there is nothing to compare.

    layers: [heads, seq, seq] each
    """
    if known.attention is None:
        return
    wanted = known.attention[row]
    if [layer.shape for layer in layers] != [layer.shape for layer in wanted]:
        raise BadReply(f"attention differs from {known.origin}", "another shape")
    worst = max(float(np.abs(layer - other).max()) for layer, other in zip(layers, wanted, strict=True))
    if worst > MAX_ATTENTION_DELTA:
        raise BadReply(
            f"attention differs from {known.origin}", f"max |Δ| {worst:.2g}, {MAX_ATTENTION_DELTA:.2g} allowed"
        )


def _cosine(left: Array, right: Array) -> float:
    return float(left @ right / max(np.linalg.norm(left) * np.linalg.norm(right), np.finfo(np.float64).tiny))


def _place(rows: Sequence[int], other: int) -> str:
    return f"position {list(rows).index(other)}" if other in rows else "a text that is not in this request"
