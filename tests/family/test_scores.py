"""Score functions against their formulas, pair by pair."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from models.scores import SCORES, AdditiveScore, BilinearScore, dot, make_score, scaled_dot

torch.set_num_threads(1)


def by_formula(name: str, parameters: dict[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """The score of one pair of vectors."""
    if name == "bilinear":
        return query @ parameters["W.weight"] @ key
    if name == "additive":
        return parameters["v.weight"][0] @ torch.tanh(parameters["W.weight"] @ query + parameters["U.weight"] @ key)
    return query @ key / (math.sqrt(len(query)) if name == "scaled_dot" else 1)


@pytest.mark.parametrize("name", SCORES)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6)),
    widths=st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7)),
)
@torch.inference_mode()
def test_each_is_its_formula(name: str, seed: int, lengths: tuple[int, int, int], widths: tuple[int, int, int]) -> None:
    torch.manual_seed(seed)
    batch, query_seq, key_seq = lengths
    query_dim, key_dim, score_dim = widths
    if "dot" in name:
        key_dim = query_dim
    score = make_score(name, query_dim, key_dim, score_dim if name == "additive" else None)
    query, key = torch.randn(batch, query_seq, query_dim).double(), torch.randn(batch, key_seq, key_dim).double()
    parameters = dict(score.double().state_dict()) if isinstance(score, nn.Module) else {}
    found = score(query, key)
    assert found.shape == (batch, query_seq, key_seq)
    pairs = [
        by_formula(name, parameters, one, other) for q, k in zip(query, key, strict=True) for one in q for other in k
    ]
    torch.testing.assert_close(found.flatten(), torch.stack(pairs))


def test_parameters_bear_the_names_of_the_papers() -> None:
    bilinear = cast(BilinearScore, make_score("bilinear", 3, 5)).state_dict()
    assert {name: tuple(value.shape) for name, value in bilinear.items()} == {"W.weight": (3, 5)}
    additive = cast(AdditiveScore, make_score("additive", 3, 5, 7)).state_dict()
    shapes = {name: tuple(value.shape) for name, value in additive.items()}
    assert shapes == {"W.weight": (7, 3), "U.weight": (7, 5), "v.weight": (1, 7)}


def test_unscaled_scores_spread_with_the_width_and_scaled_ones_do_not() -> None:
    """Vaswani et al., 2017, footnote 4: with components of variance 1 the dot product has variance d_k."""
    generator = torch.Generator().manual_seed(0)
    for d_k in (4, 16, 64, 256, 1024):
        query, key = torch.randn(2, 400, d_k, generator=generator)
        assert dot(query, key).var().item() == pytest.approx(d_k, rel=0.1)
        assert scaled_dot(query, key).var().item() == pytest.approx(1, rel=0.1)


def test_without_scaling_softmax_saturates_and_its_gradient_vanishes() -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = {}
    for score in (dot, scaled_dot):
        query, key = torch.randn(2, 200, 512, generator=generator)
        scores = score(query, key).requires_grad_()
        mixed = scores.softmax(dim=-1) @ torch.randn(200, generator=generator)
        (gradient,) = torch.autograd.grad(mixed.sum(), scores)
        sizes[score] = gradient.abs().median().item()
    assert sizes[dot] < 1e-6 < 1e-4 < sizes[scaled_dot]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cosine", 3, 3), "score: 'cosine' is not one of dot, scaled_dot, bilinear, additive"),
        (("dot", 3, 4), "key_dim: dot needs keys as wide as queries, got 4 and 3"),
        (("scaled_dot", 3, 4), "key_dim: scaled_dot needs"),
        (("bilinear", 3, 4, 5), "score_dim: only the additive score has units"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_score(*arguments)
