"""What logits become: scores by the activation of a head, labels and documents in their order. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from service.manifest import Activation
from service.runners.base import Array


def activate(logits: Array, activation: Activation) -> Array:
    """Scores of logits, computed in float64: a softmax over the labels, or a number for each of them alone.

    logits: `[…, labels]` float32, finite -> the same shape, float32
    """
    return _ACTIVATIONS[activation](logits.astype(np.float64)).astype(np.float32)


def best_first(scores: Array, count: int | None = None) -> Array:
    """The indexes of the best scores, in falling order; equal ones in the order in which they came.

    scores: `[n]` -> `[min(n, count)]` int64; None = all
    """
    order: Array = np.argsort(-scores, kind="stable")
    return order[:count]


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    total: Array = powers / powers.sum(axis=-1, keepdims=True)
    return total


def _sigmoid(logits: Array) -> Array:
    # exp of a negative number alone: the other one overflows.
    small = np.exp(-np.abs(logits))
    found: Array = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return found


_ACTIVATIONS: Mapping[Activation, Callable[[Array], Array]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "identity": lambda logits: logits,
}
