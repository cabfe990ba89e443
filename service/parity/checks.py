"""The measures of the battery: how far two outputs are apart where they mean something, in float64. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from service.bundle import Meaning, TensorSpec
from service.parity.cases import Masks
from service.runners.base import Array

_SEQ_AXES = frozenset({"seq", "query_seq", "key_seq"})


def hidden_difference(found: Array, expected: Array, masks: Masks) -> Array:
    """Difference at real positions, relative to the largest expected value there.

    found, expected: [batch, seq, dim] -> [batch, seq, dim], 0 where not real
    """
    real = masks.attention[:, :, None]
    wanted = np.where(real, expected.astype(np.float64), 0.0)
    scale = float(np.abs(wanted).max(initial=0.0)) or 1.0
    difference: Array = np.abs(np.where(real, found.astype(np.float64), 0.0) - wanted) / scale
    return difference


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


def attention_difference(found: Array, expected: Array, masks: Masks) -> Array:
    """Difference of the weights of real queries.

    found, expected: [batch, heads, seq, seq] -> the same, 0 for other queries
    """
    real = masks.attention[:, None, :, None]
    return np.abs(np.where(real, found.astype(np.float64) - expected.astype(np.float64), 0.0))


DIFFERENCES: Mapping[Meaning, Callable[[Array, Array, Masks], Array]] = {
    "token_embeddings": hidden_difference,
    "pooled": pooled_difference,
    "attention": attention_difference,
}

# Between two runs of one graph, where one gate holds every vector.
CHANGES: Mapping[Meaning, Callable[[Array, Array, Masks], Array]] = {**DIFFERENCES, "pooled": pooled_change}


def row_sum_error(weights: Array, masks: Masks) -> Array:
    """How far the weights of each real query are from summing to 1.

    weights: [batch, heads, seq, seq] -> [batch, heads, seq], 0 for other queries
    """
    error = np.abs(weights.astype(np.float64).sum(axis=-1) - 1.0)
    return np.where(masks.attention[:, None, :], error, 0.0)


def masked_weight(weights: Array, masks: Masks) -> Array:
    """What masked columns hold, in rows that are not empty.

    weights: [batch, heads, seq, seq] -> the same, 0 in other columns
    """
    is_masked = ~masks.attention & masks.attention.any(axis=1, keepdims=True)
    return np.abs(np.where(is_masked[:, None, None, :], weights, 0.0))


def empty_row_weight(weights: Array, masks: Masks) -> Array:
    """What the weights of fully masked rows hold.

    weights: [batch, heads, seq, seq] -> [rows, heads, seq, seq], of the empty rows only
    """
    return np.abs(weights[~masks.attention.any(axis=1)])


def select_output(spec: TensorSpec, values: Array, rows: Sequence[int], width: int) -> Array:
    """Some rows of an output, cut to a width along every axis that follows the length."""
    region = tuple(slice(width) if axis in _SEQ_AXES else slice(None) for axis in spec.axes[1:])
    return values[list(rows)][(slice(None), *region)]


def shape_fault(spec: TensorSpec, values: Array, *, batch: int, seq: int, heads: int) -> str | None:
    """What is wrong with an output's dtype and shape, by the manifest's word; None when nothing is."""
    sizes = {"batch": batch, "heads": heads} | dict.fromkeys(_SEQ_AXES, seq)
    wanted = [sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in spec.axes]
    fits = len(wanted) == values.ndim and all(
        isinstance(size, str) or size == got for size, got in zip(wanted, values.shape, strict=True)
    )
    if fits and values.dtype == spec.dtype:
        return None
    return f"{spec.name}: {spec.dtype} {wanted} needed, got {values.dtype} {list(values.shape)}"


def _unit(vectors: Array) -> Array:
    exact = vectors.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    return exact / np.where(norms == 0, 1.0, norms)
