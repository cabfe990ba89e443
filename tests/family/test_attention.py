"""Attention with one head against formulas written out, and against stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import Tensor, nn

from models.attention import ScoredAttention, SingleHeadAttention
from models.scores import SCORES
from tests.fixtures.masks import MASKS, make_mask
from tests.fixtures.worked_case import PATH, attention_by_hand, draw

torch.set_num_threads(1)


@pytest.fixture
def hidden() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 10, 512)


@torch.inference_mode()
def test_worked_case() -> None:
    """4 sequences of 10 vectors of 512, d_k 64: every number as stored."""
    module = SingleHeadAttention(512, 64)
    hidden, matrices = draw()
    assert sorted(module.state_dict()) == sorted(matrices) == ["W_K.weight", "W_Q.weight", "W_V.weight"]
    module.load_state_dict({name: torch.from_numpy(matrix).float() for name, matrix in matrices.items()})
    output, weights = module(torch.from_numpy(hidden).float())
    stored = load_file(PATH)
    assert stored["output"].shape == (4, 10, 64)
    assert stored["weights"].shape == (4, 10, 10)
    np.testing.assert_allclose(output.numpy(), stored["output"], atol=1e-5)
    np.testing.assert_allclose(weights.numpy(), stored["weights"], atol=1e-5)


def test_the_stored_numbers_are_those_of_the_formula() -> None:
    output, weights = attention_by_hand(*draw())
    stored = load_file(PATH)
    np.testing.assert_allclose(stored["output"], output, atol=1e-6)
    np.testing.assert_allclose(stored["weights"], weights, atol=1e-7)


@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    widths=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
@torch.inference_mode()
def test_every_shape_is_the_formula(seed: int, lengths: tuple[int, int], widths: tuple[int, int, int]) -> None:
    torch.manual_seed(seed)
    module = SingleHeadAttention(*widths)
    hidden = torch.randn(*lengths, widths[0])
    matrices = {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}
    output, weights = attention_by_hand(hidden.double().numpy(), matrices)
    found_output, found_weights = module(hidden)
    np.testing.assert_allclose(found_output.numpy(), output, atol=1e-6)
    np.testing.assert_allclose(found_weights.numpy(), weights, atol=1e-6)


def test_values_may_have_their_own_width(hidden: Tensor) -> None:
    output, weights = SingleHeadAttention(512, 64, 48)(hidden)
    assert output.shape == (4, 10, 48)
    assert weights.shape == (4, 10, 10)


@torch.inference_mode()
def test_masked_keys_are_as_if_absent(hidden: Tensor) -> None:
    module = SingleHeadAttention(512, 64)
    mask = torch.ones(4, 10)
    mask[1, 6:] = 0
    output, weights = module(hidden, mask)
    short, short_weights = module(hidden[1:2, :6])
    torch.testing.assert_close(output[1:2, :6], short)
    torch.testing.assert_close(weights[1:2, :6, :6], short_weights)
    assert (weights[1, :, 6:] == 0).all()


@torch.inference_mode()
def test_causal_mask_hides_what_follows(hidden: Tensor) -> None:
    module = SingleHeadAttention(512, 64)
    causal = torch.ones(10, 10).tril()
    output, _ = module(hidden, causal)
    changed = hidden.clone()
    changed[:, 7:] = 0
    torch.testing.assert_close(module(changed, causal)[0][:, :7], output[:, :7])


@torch.inference_mode()
def test_fully_masked_row_gives_zeros(hidden: Tensor) -> None:
    mask = torch.ones(4, 10)
    mask[2] = 0
    output, weights = SingleHeadAttention(512, 64)(hidden, mask)
    assert (weights[2] == 0).all()
    assert (output[2] == 0).all()
    assert (output[[0, 1, 3]] != 0).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
@torch.inference_mode()
def test_queries_score_keys_and_weights_mix_values(score: str, mask: str) -> None:
    """Row by row, over the kept keys alone."""
    torch.manual_seed(0)
    module = ScoredAttention(6, 6 if "dot" in score else 5, 3, score=score, temperature=0.5)
    query, key, value = torch.randn(3, 4, 6), torch.randn(3, 7, module.key_dim), torch.randn(3, 7, 3)
    keep = make_mask(mask, 3, 7)
    output, weights = module(query, key, value, keep)
    for row in range(3):
        kept = keep[row]
        expected = torch.zeros(4, 7)
        if kept.any():
            expected[:, kept] = (module.score(query[row], key[row, kept]) / 0.5).softmax(dim=-1)
        torch.testing.assert_close(weights[row], expected)
        torch.testing.assert_close(output[row], expected @ value[row])
        assert (weights[row][:, ~kept] == 0).all()


@torch.inference_mode()
def test_weightings_are_chosen_by_name() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 3, 6), torch.randn(2, 7, 6), torch.randn(2, 7, 2)

    def num_attended(**options: Any) -> set[int]:
        _, weights = ScoredAttention(6, value_dim=2, **options).eval()(query, key, value)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3))
        return set((weights > 0).sum(dim=-1).flatten().tolist())

    assert num_attended() == {7}
    assert num_attended(weighting="top_k", k=3) == {3}
    assert num_attended(weighting="top_k", k=30) == {7}
    assert num_attended(weighting="argmax") == num_attended(weighting="gumbel") == {1}


def test_single_head_is_scored_attention_over_projections(hidden: Tensor) -> None:
    module = SingleHeadAttention(512, 64)
    with torch.inference_mode():
        expected = module(hidden)
        found = ScoredAttention(64)(module.W_Q(hidden), module.W_K(hidden), module.W_V(hidden))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("module", [SingleHeadAttention(8, 4), ScoredAttention(8, score="bilinear", temperature=0.01)])
@torch.inference_mode()
def test_half_precision_is_finite_and_near(module: nn.Module) -> None:
    torch.manual_seed(2)
    hidden = torch.randn(3, 9, 8)
    mask = make_mask("empty row", 3, 9)
    inputs = (hidden,) if isinstance(module, SingleHeadAttention) else (hidden, hidden, hidden)
    expected = module.float()(*inputs, mask)
    for found, reference in zip(module.half()(*(each.half() for each in inputs), mask), expected, strict=True):
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.float(), reference, atol=0.05, rtol=0)
        assert (found[-1] == 0).all()
