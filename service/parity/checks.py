"""The measures of the battery: how far two outputs are apart where they mean something, in float64. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from service.engine.layouts import Sizes, own_shape
from service.graph_spec import TensorSpec
from service.parity.masks import Masks
from service.runners.base import Array

_FEW_VALUES = 16


def relative_difference(found: Array, expected: Array, real: Array, usual: float = 0.0) -> Array:
    """Difference at real positions, relative to the largest expected value of the same row of the batch.

    Values that are equal bit by bit set no scale: one of -1e9, as masks and diagonals are filled with, would hide every
    other difference. Whole numbers and truth values are equal, or differ by 1.

    A row of few values may be near 0 by chance, as a score is: it is held against what the model usually gives.

    found, expected: [batch, …]; real: broadcastable to them; usual: the usual size of the model's values
    -> [batch, …], 0 where equal or not real
    """
    differs: Array = np.broadcast_to(real, expected.shape) & (found != expected)
    if expected.dtype.kind != "f" or not differs.any():
        return np.asarray(differs, dtype=np.float64)
    wanted = np.where(real, expected.astype(np.float64), 0.0)
    scale = np.abs(np.where(differs, wanted, 0.0)).max(axis=tuple(range(1, wanted.ndim)), keepdims=True, initial=0.0)
    scale = np.maximum(scale, usual_size(wanted))
    if prod(wanted.shape[1:]) < _FEW_VALUES:
        scale = np.maximum(scale, usual)
    difference: Array = np.where(differs, np.abs(found.astype(np.float64) - wanted), 0.0)
    relative: Array = difference / np.where(scale == 0, 1.0, scale)
    return relative


def pooled_difference(found: Array, expected: Array, masks: Masks) -> Array:
    """Difference of the L2-normalised vectors, of rows that have something to pool.

    found, expected: [batch, dim] -> [batch, dim], 0 in other rows
    """
    difference = np.abs(_unit(found) - _unit(expected))
    return np.where(masks.pooling.any(axis=1, keepdims=True), difference, 0.0)


def pooled_raw_difference(found: Array, expected: Array, masks: Masks) -> Array:
    """Difference of the vectors as they are, relative to the largest expected value: sees a vector of wrong length.

    found, expected: [batch, dim] -> [batch, dim], 0 in rows that have nothing to pool
    """
    has_any = masks.pooling.any(axis=1, keepdims=True)
    wanted = np.where(has_any, expected.astype(np.float64), 0.0)
    scale = float(np.abs(wanted).max(initial=0.0)) or 1.0
    difference: Array = np.abs(np.where(has_any, found.astype(np.float64), 0.0) - wanted) / scale
    return difference


def pooled_change(found: Array, expected: Array, masks: Masks) -> Array:
    """The larger of the two differences, at length one and as they are.

    found, expected: [batch, dim] -> [batch, dim], 0 in rows that have nothing to pool
    """
    change: Array = np.maximum(pooled_difference(found, expected, masks), pooled_raw_difference(found, expected, masks))
    return change


def cosine_difference(found: Array, expected: Array, masks: Masks) -> Array:
    """1 - cos of rows that have something to pool, as half the squared distance of unit vectors: exact near 0.

    found, expected: [batch, dim] -> [batch], 0 in other rows
    """
    squared = np.square(_unit(found) - _unit(expected)).sum(axis=1)
    return np.where(masks.pooling.any(axis=1), squared / 2, 0.0)


def attention_difference(found: Array, expected: Array, kept: Array) -> Array:
    """Difference of the weights of real queries.

    found, expected: [batch, heads, queries, keys]; kept: [batch, queries, keys] -> the same, 0 for other queries
    """
    real = np.any(kept, axis=2, keepdims=True)[:, None]
    return np.abs(np.where(real, found.astype(np.float64) - expected.astype(np.float64), 0.0))


def row_sum_error(weights: Array, kept: Array) -> Array:
    """How far the weights of each real query are from summing to 1.

    weights: [batch, heads, queries, keys]; kept: [batch, queries, keys] -> [batch, heads, queries], 0 for other queries
    """
    error = np.abs(weights.astype(np.float64).sum(axis=-1) - 1.0)
    return np.where(np.any(kept, axis=2, keepdims=True)[:, None, :, 0], error, 0.0)


def masked_weight(weights: Array, columns: Array) -> Array:
    """What masked columns hold, in rows of the batch that are not empty.

    weights: [batch, heads, queries, keys]; columns: [batch, queries, keys], what a query may attend to
    -> [batch, heads, queries, keys], 0 elsewhere
    """
    is_masked = ~columns & np.any(columns, axis=(1, 2), keepdims=True)
    return np.abs(np.where(is_masked[:, None], weights, 0.0))


def empty_row_weight(weights: Array, columns: Array) -> Array:
    """What the weights of fully masked rows of the batch hold.

    weights: [batch, heads, queries, keys]; columns: [batch, queries, keys] -> [rows, heads, queries, keys]
    """
    is_empty: Array = ~np.any(columns, axis=(1, 2), keepdims=False)
    return np.abs(weights[is_empty])


def select_output(spec: TensorSpec, values: Array, rows: Sequence[int], sizes: Sizes) -> Array:
    """Some rows of an output, cut to the shape that rows of smaller sizes have."""
    region = tuple(map(slice, own_shape(spec, sizes)))
    return values[list(rows)][(slice(None), *region)]


def shape_fault(spec: TensorSpec, values: Array, batch: int, sizes: Sizes) -> str | None:
    """What is wrong with an output's dtype and shape, by the manifest's word; None when nothing is."""
    wanted = (batch, *own_shape(spec, sizes))
    if values.shape == wanted and values.dtype == spec.dtype:
        return None
    return f"{spec.name}: {spec.dtype} {list(wanted)} needed, got {values.dtype} {list(values.shape)}"


def usual_size(values: Array) -> float:
    """The median of the different sizes that values other than 0 have: what a row of small ones is held against."""
    sizes = np.unique(np.abs(values))
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)]
    return float(sizes[(len(sizes) - 1) // 2]) if len(sizes) else 0.0


def _unit(vectors: Array) -> Array:
    exact = vectors.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    return exact / np.where(norms == 0, 1.0, norms)
