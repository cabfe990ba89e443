"""The one masking rule under every weighting, and how masks are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.weighting import (
    WEIGHTINGS,
    Weighting,
    argmax_weights,
    gumbel_straight_through,
    masks_of_keys,
    read_mask,
    sample_weights,
    softmax_weights,
    top_k_weights,
)

Weigh = Callable[[Tensor, Tensor | None], Tensor]
EVERY: dict[str, Weigh] = {
    "softmax": softmax_weights,
    "cold softmax": lambda scores, keep: softmax_weights(scores, keep, temperature=1e-6),
    "argmax": argmax_weights,
    "top_k": lambda scores, keep: top_k_weights(scores, keep, k=2),
    "gumbel": gumbel_straight_through,
    "sample": lambda scores, keep: sample_weights(scores, keep)[0],
}


@pytest.mark.parametrize("name", EVERY)
@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6)),
    scale=st.sampled_from([0.1, 10.0, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
)
def test_rows_are_distributions_over_what_is_kept(
    name: str, seed: int, shape: tuple[int, int, int], scale: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randn(shape, generator=generator) * scale).clamp(-60000, 60000).to(dtype)
    keep = torch.rand(shape, generator=generator) < 0.5
    weights = EVERY[name](scores, keep)
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


@pytest.mark.parametrize("name", ["argmax", "gumbel", "sample"])
def test_a_choice_is_kept_however_low_its_score(name: str) -> None:
    scores = torch.full((1, 3), torch.finfo(torch.float32).min)
    assert EVERY[name](scores, torch.tensor([[False, True, False]])).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_no_mask_is_a_mask_of_ones(name: str) -> None:
    scores = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    weigh = Weighting(name, k=2 if name == "top_k" else None).eval()
    torch.testing.assert_close(weigh(scores), weigh(scores, torch.ones(2, 1, 5).bool()), atol=0, rtol=0)


def test_argmax_takes_the_first_of_the_largest_kept() -> None:
    scores = torch.tensor([[5.0, 2.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.0], [-7.0, -9.0, -8.0, -9.0]])
    keep = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1]]).bool()
    assert argmax_weights(scores, keep).argmax(dim=-1).tolist() == [2, 2, 1]


@given(seed=st.integers(0, 2**31), k=st.integers(1, 8), levels=st.sampled_from([2, 3, 100]))
def test_top_k_is_softmax_over_the_best_kept(seed: int, k: int, levels: int) -> None:
    """Sorted by hand, the first of equal scores before the others."""
    torch.manual_seed(seed)
    scores = torch.randint(0, levels, (3, 6)).float() / 4
    keep = torch.rand(3, 6) < 0.7
    weights = top_k_weights(scores, keep, k=k)
    for row, kept, found in zip(scores, keep, weights, strict=True):
        columns = sorted((column for column in range(6) if kept[column]), key=lambda column: -row[column].item())[:k]
        expected = torch.zeros(6)
        if columns:
            expected[columns] = row[columns].softmax(dim=-1)
        torch.testing.assert_close(found, expected)
        assert (found[expected == 0] == 0).all()


def test_top_1_is_argmax() -> None:
    scores = torch.randn(50, 7, generator=torch.Generator().manual_seed(3))
    assert torch.equal(top_k_weights(scores, k=1), argmax_weights(scores))


def test_straight_through_is_hard_forward_and_soft_backward() -> None:
    torch.manual_seed(4)
    scores = torch.randn(20, 6, requires_grad=True)
    value = torch.randn(6)
    state = torch.get_rng_state()
    weights = gumbel_straight_through(scores, temperature=0.7)
    assert set(weights.flatten().tolist()) == {0.0, 1.0}
    (found,) = torch.autograd.grad((weights @ value).sum(), scores)
    torch.set_rng_state(state)
    noise = -torch.empty(20, 6).exponential_().log()
    (expected,) = torch.autograd.grad((((scores + noise) / 0.7).softmax(dim=-1) @ value).sum(), scores)
    torch.testing.assert_close(found, expected)


def test_outside_training_gumbel_is_argmax() -> None:
    scores = torch.randn(20, 6, generator=torch.Generator().manual_seed(5))
    weigh = Weighting("gumbel", temperature=0.5)
    assert any(not torch.equal(weigh(scores), weigh(scores)) for _ in range(5))
    weigh.eval()
    assert torch.equal(weigh(scores), argmax_weights(scores))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_come_as_often_as_their_probability_says(temperature: float) -> None:
    torch.manual_seed(6)
    scores, keep = torch.tensor([0.3, 2.0, -1.0, 0.9, 1.4]), torch.tensor([1, 1, 0, 1, 1]).bool()
    expected = softmax_weights(scores, keep, temperature=temperature)
    weights, log_prob = sample_weights(scores.expand(20_000, 5), keep, temperature=temperature)
    assert (weights.mean(dim=0) - expected).abs().max() < 0.015  # four standard errors
    torch.testing.assert_close(log_prob.exp(), weights @ expected)
    straight_through = torch.stack([gumbel_straight_through(scores, keep) for _ in range(2000)]).mean(dim=0)
    assert (straight_through - softmax_weights(scores, keep)).abs().max() < 0.05


def test_a_sample_of_nothing_has_log_probability_zero() -> None:
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(7)).requires_grad_()
    keep = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]]).bool()
    weights, log_prob = sample_weights(scores, keep)
    assert not weights.requires_grad
    assert log_prob[1:].tolist() == [0.0, 0.0]  # no choice, and one choice only
    (gradient,) = torch.autograd.grad(log_prob.sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[~keep] == 0).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hardmax", {}, "weighting: 'hardmax' is not one of softmax, argmax, top_k, gumbel"),
        ("softmax", {"temperature": 0.0}, "temperature: above 0 needed, got 0"),
        ("top_k", {}, "k: top_k needs it"),
        ("softmax", {"k": 3}, "k: top_k needs it, the others have none"),
        ("top_k", {"k": 0}, "k: at least 1 needed, got 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Weighting(name, **options)  # type: ignore[arg-type]


def test_k_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="k: at least 1 needed"):
        top_k_weights(torch.zeros(2, 2), k=0)


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


def test_a_mask_is_of_keys_where_signatures_are_followed() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    with pytest.raises(ValueError, match="could be"):
        read_mask(mask, 2, 2)
    with masks_of_keys():
        keep = read_mask(mask, 2, 2)
    assert keep is not None
    assert keep.tolist() == [[[True, True]], [[True, False]]]
    with pytest.raises(ValueError, match="could be"):
        read_mask(mask, 2, 2)
