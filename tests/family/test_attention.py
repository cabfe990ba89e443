"""Attention modules against formulas written out in numpy, and against PyTorch's own module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from models.attention import SingleHeadAttention
from models.multi_head import MultiHeadAttention

torch.set_num_threads(1)
Array = NDArray[np.float64]


def attention_by_hand(hidden: Array, matrices: dict[str, Array]) -> tuple[Array, Array]:
    """softmax(Q Kᵀ / √d_k) V, row by row. matrices: as in the state dict, `[out, in]`."""
    outputs, weights = [], []
    for row in hidden:
        query, key, value = (row @ matrices[f"W_{letter}.weight"].T for letter in "QKV")
        scores = query @ key.T / np.sqrt(query.shape[1])
        exps = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights.append(exps / exps.sum(axis=1, keepdims=True))
        outputs.append(weights[-1] @ value)
    return np.stack(outputs), np.stack(weights)


def to_double(module: nn.Module) -> dict[str, Array]:
    return {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}


@pytest.fixture
def hidden() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 10, 512)


def test_worked_case(hidden: torch.Tensor) -> None:
    """4 sequences of 10 vectors of 512, d_k 64."""
    module = SingleHeadAttention(512, 64)
    assert sorted(module.state_dict()) == ["W_K.weight", "W_Q.weight", "W_V.weight"]
    with torch.inference_mode():
        output, weights = module(hidden)
    assert output.shape == (4, 10, 64)
    assert weights.shape == (4, 10, 10)
    expected_output, expected_weights = attention_by_hand(hidden.double().numpy(), to_double(module))
    np.testing.assert_allclose(output.numpy(), expected_output, atol=1e-6)
    np.testing.assert_allclose(weights.numpy(), expected_weights, atol=1e-6)


def test_values_may_have_their_own_width(hidden: torch.Tensor) -> None:
    output, weights = SingleHeadAttention(512, 64, 48)(hidden)
    assert output.shape == (4, 10, 48)
    assert weights.shape == (4, 10, 10)


@torch.inference_mode()
def test_masked_keys_are_as_if_absent(hidden: torch.Tensor) -> None:
    module = SingleHeadAttention(512, 64)
    mask = torch.ones(4, 10)
    mask[1, 6:] = 0
    output, weights = module(hidden, mask)
    short, short_weights = module(hidden[1:2, :6])
    torch.testing.assert_close(output[1:2, :6], short)
    torch.testing.assert_close(weights[1:2, :6, :6], short_weights)
    assert (weights[1, :, 6:] == 0).all()


@torch.inference_mode()
def test_causal_mask_hides_what_follows(hidden: torch.Tensor) -> None:
    module = SingleHeadAttention(512, 64)
    causal = torch.ones(10, 10).tril()
    output, _ = module(hidden, causal)
    changed = hidden.clone()
    changed[:, 7:] = 0
    torch.testing.assert_close(module(changed, causal)[0][:, :7], output[:, :7])


@torch.inference_mode()
def test_fully_masked_row_gives_zeros(hidden: torch.Tensor) -> None:
    mask = torch.ones(4, 10)
    mask[2] = 0
    for module in (SingleHeadAttention(512, 64), MultiHeadAttention(512, 8)):
        arguments = (hidden,) if isinstance(module, SingleHeadAttention) else (hidden, hidden, hidden)
        output, weights = module(*arguments, mask)
        assert (weights[2] == 0).all()
        assert output.isfinite().all()
        bias = module.output.bias if isinstance(module, MultiHeadAttention) else torch.zeros(64)
        torch.testing.assert_close(output[2], bias.expand(10, -1))


@torch.inference_mode()
@pytest.mark.parametrize(("dim", "num_heads"), [(12, 1), (12, 3), (35, 5), (64, 16)])
def test_equals_torch(dim: int, num_heads: int) -> None:
    torch.manual_seed(dim)
    theirs = nn.MultiheadAttention(dim, num_heads, batch_first=True).eval()
    ours = MultiHeadAttention(dim, num_heads)
    for name, weight, bias in zip(
        ("query", "key", "value"), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.normal_().chunk(3), strict=True
    ):
        ours.get_submodule(name).load_state_dict({"weight": weight, "bias": bias})
    ours.output.load_state_dict(theirs.out_proj.state_dict())
    query, memory = torch.randn(3, 4, dim), torch.randn(3, 6, dim)
    keep = torch.rand(3, 6) < 0.6
    keep[:, 0] = True
    expected = theirs(query, memory, memory, key_padding_mask=~keep, average_attn_weights=False)
    found = ours(query, memory, memory, keep)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="num_heads: 5 heads do not divide dim 12"):
        MultiHeadAttention(12, 5)
