"""Activations and orders, against PyTorch and by their own rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.engine.scores import activate, best_first
from service.manifest import Activation
from service.runners.base import Array

FLOATS = st.floats(-1e5, 1e5, width=32)


@given(arrays(np.float32, (3, 5), elements=FLOATS))
def test_scores_are_those_of_torch(logits: Array) -> None:
    given_logits = torch.from_numpy(logits.astype(np.float64))
    expected: dict[Activation, torch.Tensor] = {
        "softmax": given_logits.softmax(-1),
        "sigmoid": given_logits.sigmoid(),
        "identity": given_logits,
    }
    for activation, values in expected.items():
        found = activate(logits, activation)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, values.numpy(), rtol=1e-6, atol=1e-37)


def test_the_largest_logits_there_are_give_numbers() -> None:
    limit = np.finfo(np.float32).max
    for activation in ("softmax", "sigmoid"):
        scores = activate(np.array([-limit, 0, limit], dtype=np.float32), activation)
        assert np.isfinite(scores).all()
        assert scores[2] == 1.0


@given(st.lists(st.integers(-2, 2), max_size=12), st.none() | st.integers(1, 15))
def test_the_best_come_first_and_equal_ones_as_they_came(values: list[int], count: int | None) -> None:
    expected = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert best_first(np.array(values, dtype=np.float32), count).tolist() == expected[:count]


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_tokens_are_scored_one_by_one(activation: Activation) -> None:
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_array_equal(activate(logits, activation), np.stack([activate(row, activation) for row in logits]))
