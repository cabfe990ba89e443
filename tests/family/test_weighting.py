"""The one masking rule, and how masks are read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.scores import dot, scaled_dot
from models.weighting import read_mask, softmax_weights


@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6)),
    scale=st.sampled_from([0.1, 10.0, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
)
def test_rows_are_distributions_over_what_is_kept(
    seed: int, shape: tuple[int, int, int], scale: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randn(shape, generator=generator) * scale).clamp(-60000, 60000).to(dtype)
    keep = torch.rand(shape, generator=generator) < 0.5
    weights = softmax_weights(scores, keep)
    assert weights.isfinite().all()
    assert (weights[~keep] == 0).all()
    has_any = keep.any(dim=-1)
    torch.testing.assert_close(weights.sum(dim=-1), has_any.to(dtype), atol=2e-3, rtol=0)


def test_masked_columns_are_as_if_absent() -> None:
    scores = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([1, 0, 1, 1, 0, 1, 0]).bool()
    torch.testing.assert_close(softmax_weights(scores, keep)[:, keep], scores[:, keep].softmax(dim=-1))


def test_temperature_divides_the_scores() -> None:
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(softmax_weights(scores, temperature=4.0), (scores / 4).softmax(dim=-1))
    assert softmax_weights(scores, temperature=1e-3).amax(dim=-1).min() > 0.999


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_above_zero(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature: above 0 needed"):
        softmax_weights(torch.zeros(2, 2), temperature=temperature)


def test_scaled_dot_keeps_the_variance() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 400, 64, generator=generator)
    assert scaled_dot(query, key).std().item() == pytest.approx(1, rel=0.02)
    torch.testing.assert_close(dot(query, key), scaled_dot(query, key) * 8)


def test_each_shape_of_mask_is_read() -> None:
    keys = torch.tensor([[1, 1, 0], [1, 0, 0]])  # batch 2, key_seq 3
    assert read_mask(None, 2, 5) is None
    by_batch, by_query = read_mask(keys, 2, 5), read_mask(torch.ones(5, 3), 2, 5)
    assert by_batch is not None
    assert by_query is not None
    assert by_batch.shape == (2, 1, 3)
    assert by_query.shape == (1, 5, 3)
    full = torch.ones(2, 5, 3).bool()
    assert read_mask(full, 2, 5) is full


def test_a_mask_with_two_meanings_is_refused() -> None:
    with pytest.raises(ValueError, match=r"could be \[batch, key_seq\] or \[query_seq, key_seq\]"):
        read_mask(torch.ones(4, 4), 4, 4)


@pytest.mark.parametrize("shape", [(3, 5), (4,), (1, 2, 3, 4)])
def test_a_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^mask: "):
        read_mask(torch.ones(shape), 2, 5)
