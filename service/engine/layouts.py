"""Attention weights in their own layout: the shape that a row's have, and the dense matrix that they stand for.

Local and sparse modules give weights as bands, blocks and columns; which key a column stands for is in `LayoutSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.graph_spec import LayoutSpec, TensorSpec
from service.runners.base import Array

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """The weights of one output of a layer. weights: `[heads, query rows, columns]`; index: `[num_global]` or None."""

    layout: LayoutSpec
    weights: Array
    index: Array | None = None


def own_shape(spec: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """The shape of one row of an output, by the sizes of the row's inputs.

    An axis that is no input's is known by the layout: one column for each stride, or for each tail of a block.
    Raises KeyError for any other axis.
    """
    shape = [axis if isinstance(axis, int) else sizes.get(axis, -1) for axis in spec.axes[1:]]
    if shape and shape[-1] == -1:
        shape[-1] = _num_columns(spec, sizes)
    if -1 in shape:
        raise KeyError(f"{spec.name}: axis {spec.axes[1 + shape.index(-1)]} is no input's")
    return tuple(shape)


def size_of(axis: str | int, sizes: Sizes) -> int:
    """The size of an axis: a number is its own. Raises KeyError for an unknown word."""
    return axis if isinstance(axis, int) else sizes[axis]


def query_axis(spec: TensorSpec) -> str | int:
    """The axis of an attention output whose positions attend."""
    return spec.axes[-2]


def _num_columns(spec: TensorSpec, sizes: Sizes) -> int:
    layout, seq = spec.layout, size_of(query_axis(spec), sizes)
    if layout.kind == "strided":
        return -(-seq // layout.stride)
    if layout.kind == "summary":
        return -(-seq // layout.block) * layout.tail
    return -1


def keys_of(part: Part, num_queries: int, num_keys: int) -> Array:
    """The key that each column of each row stands for, -1 where none. -> `[num_queries, columns]` int64"""
    layout = part.layout
    row = np.arange(num_queries)[:, None]
    column = np.arange(part.weights.shape[-1])[None, :]
    if layout.kind == "band":
        keys = row + layout.offset + column
    elif layout.kind == "strided":
        keys = row % layout.stride + column * layout.stride
    elif layout.kind == "block":
        keys = row // layout.block * layout.block + column
    elif layout.kind == "summary":
        keys = column // layout.tail * layout.block + layout.block - layout.tail + column % layout.tail + 0 * row
    elif layout.kind == "global_keys" and part.index is not None:
        keys = part.index[None, :] + 0 * row
    else:
        keys = column + 0 * row
    inside: Array = np.where((keys >= 0) & (keys < num_keys), keys, -1)
    return inside


def expand(parts: Sequence[Part], num_queries: int, num_keys: int) -> Array:
    """One layer as a dense matrix. Parts are disjoint, so that each weight has one place.

    -> `[heads, num_queries, num_keys]` float32
    """
    heads = parts[0].weights.shape[0]
    dense = np.zeros((heads, num_queries, num_keys + 1), dtype=np.float32)  # what has no key goes to the last column
    rows = np.arange(num_queries)[:, None]
    for part in parts:
        if part.layout.kind != "global_queries":
            keys = keys_of(part, num_queries, num_keys)
            dense[:, rows, keys] += part.weights  # within one part no key comes twice
    for part in parts:
        if part.layout.kind == "global_queries" and part.index is not None:
            is_there = part.index >= 0
            dense[:, part.index[is_there], :num_keys] = part.weights[:, is_there]
    return dense[..., :num_keys]
