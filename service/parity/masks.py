"""What is real in a batch of the battery: masks by axis and by pairs of axes, drawn at random or read from inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from service.engine.layouts import Sizes
from service.graph_spec import GraphSpec, TensorSpec
from service.runners.base import Array

_OF_A_TEXT = frozenset({"logits", "sparse"})
MASK_MEANINGS = frozenset({"attention_mask", "mask"})
MaskKind = Literal["full", "right", "left", "holes", "empty"]

MASK_KINDS: Mapping[str, tuple[MaskKind, ...]] = {
    "right": ("full", "right"),
    "any": ("full", "right", "left", "holes", "empty"),
}


@dataclass(frozen=True, slots=True)
class Masks:
    """What is real in a batch, as bool.

    axes: `[batch, size]` by symbolic axis, all True where no mask says otherwise. pairs: `[batch, queries, keys]` by
    the axes of a mask that has both. pooling: `[batch, seq]`, what is pooled of `seq`.
    """

    axes: Mapping[str, Array]
    pooling: Array
    pairs: Mapping[tuple[str, str], Array] = field(default_factory=dict)

    @property
    def attention(self) -> Array:
        """`[batch, seq]`"""
        return self.axes["seq"]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every symbolic axis."""
        return {axis: keep.shape[1] for axis, keep in self.axes.items()}

    def select(self, rows: Sequence[int], sizes: Sizes) -> Masks:
        """Some rows, cut to smaller sizes."""
        chosen = list(rows)
        return Masks(
            {axis: keep[chosen, : sizes[axis]] for axis, keep in self.axes.items()},
            self.pooling[chosen, : sizes.get("seq", 0)],
            {(q, k): keep[chosen, : sizes[q], : sizes[k]] for (q, k), keep in self.pairs.items()},
        )

    def real(self, spec: TensorSpec) -> Array:
        """Where an output means something, broadcastable to it: at the real positions of its own axes.

        What is said of a whole text means nothing where the text is empty.
        """
        batch = len(next(iter(self.axes.values()))) if self.axes else 1
        found = np.ones((batch, *([1] * (len(spec.axes) - 1))), dtype=bool)
        for place, axis in enumerate(spec.axes):
            if axis in self.axes:
                shape = [batch, *([1] * (len(spec.axes) - 1))]
                shape[place] = -1
                found = found & self.axes[str(axis)].reshape(shape)
        if spec.meaning in _OF_A_TEXT:
            found = found & self.attention.any(axis=1).reshape([batch, *([1] * (len(spec.axes) - 1))])
        return found

    def along(self, axis: str | int) -> Array:
        """What is real along an axis; a fixed one has no padding. -> `[batch, size]`"""
        if isinstance(axis, str):
            return self.axes[axis]
        batch = len(next(iter(self.axes.values()))) if self.axes else 1
        return np.ones((batch, axis), dtype=bool)

    def columns(self, queries: str | int, keys: str | int) -> Array:
        """Which keys each query may attend to, be it real or not. -> `[batch, queries, keys]`"""
        columns = np.repeat(self.along(keys)[:, None, :], self.along(queries).shape[1], axis=1)
        pair = (str(queries), str(keys))
        return columns & self.pairs[pair] if pair in self.pairs else columns

    def kept(self, queries: str | int, keys: str | int) -> Array:
        """Which keys each real query may attend to. -> `[batch, queries, keys]`"""
        kept: Array = self.columns(queries, keys) & self.along(queries)[:, :, None]
        return kept


def read_masks(graph: GraphSpec, inputs: Mapping[str, Array]) -> Masks:
    """What is real in the inputs of a batch, by their own masks."""
    axes: dict[str, Array] = {}
    pairs: dict[tuple[str, str], Array] = {}
    for spec in graph.inputs:
        values = inputs[spec.name]
        for axis, size in zip(spec.axes[1:], values.shape[1:], strict=True):
            if isinstance(axis, str):
                axes.setdefault(axis, np.ones((len(values), size), dtype=bool))
    by_meaning = {spec.meaning: inputs[spec.name].astype(bool) for spec in graph.inputs}
    for spec in graph.inputs:
        if is_pair(spec):
            pairs[pair_of(spec)] = inputs[spec.name].astype(bool)
        elif spec.meaning in MASK_MEANINGS:
            axes[str(spec.axes[1])] = inputs[spec.name].astype(bool)
        elif spec.meaning == "index":
            axes[str(spec.axes[1])] = inputs[spec.name] >= 0
    pooling = by_meaning.get("pooling_mask", axes.get("seq", np.ones((1, 0), dtype=bool)))
    return Masks(axes, pooling, pairs)


def draw_axis(graph: GraphSpec, axis: str, kind: MaskKind, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """What is real along an axis: all of it, where no mask of its own says otherwise. shape: batch, size"""
    has_mask = any(spec.meaning in MASK_MEANINGS and spec.axes[1:] == (axis,) for spec in graph.inputs)
    return _mask(kind, shape, rng) if has_mask else np.ones(shape, dtype=bool)


def is_pair(spec: TensorSpec) -> bool:
    """True for a mask of queries and keys."""
    return spec.meaning == "mask" and len(spec.axes) == 3


def pair_of(spec: TensorSpec) -> tuple[str, str]:
    """The axes of queries and of keys of such a mask."""
    return str(spec.axes[1]), str(spec.axes[2])


def draw_pair(kind: MaskKind, shape: tuple[int, int, int], rng: np.random.Generator) -> Array:
    """Which keys each query may attend to. shape: batch, queries, keys"""
    batch, queries, keys = shape
    if kind == "holes":
        mask = rng.random(shape) < 0.6
        mask[:, :, 0] = True
        return mask
    columns = _mask(kind, (batch, keys), rng)
    return np.repeat(columns[:, None, :], queries, axis=1)


def _mask(kind: MaskKind, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    batch, seq = shape
    if kind == "full":
        return np.ones(shape, dtype=bool)
    if kind == "holes":
        mask = rng.random(shape) < 0.6
        mask[np.arange(batch), rng.integers(0, seq, batch)] = True
        return mask
    lengths = rng.integers(1, seq + 1, batch)
    if batch > 1:
        lengths[0] = seq
    mask = np.arange(seq) < lengths[:, None]
    if kind == "empty":
        mask[-1] = False
    return mask[:, ::-1].copy() if kind == "left" else mask


def drop_prefix(mask: Array, rng: np.random.Generator) -> Array:
    """The same without the first few real positions of each row, of which one is kept."""
    places = np.cumsum(mask, axis=1)  # 1 for the first real position, 2 for the second, …
    num_real = mask.sum(axis=1)
    dropped = np.minimum(rng.integers(1, 5, len(mask)), np.maximum(num_real - 1, 0))
    kept: Array = mask & (places > dropped[:, None])
    return kept
