"""The convolutional encoder against plain convolutions of each row alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from models.convolutional import CnnEncoder
from tests.fixtures.masks import padded

torch.set_num_threads(1)
WIDTH = 5


def convolve(module: CnnEncoder, row: Tensor) -> Tensor:
    """Position by position from the formula, zeros beyond both ends: [seq, width] -> [seq, dim]."""
    weights = [value for name, value in module.state_dict().items() if name.endswith("weight")]
    biases = [value for name, value in module.state_dict().items() if name.endswith("bias")]
    for weight, bias in zip(weights, biases, strict=True):
        reach = weight.shape[-1] // 2
        around = functional.pad(row, (0, 0, reach, reach))
        windows = [around[start : start + 2 * reach + 1] for start in range(len(row))]  # [kernel_size, width] each
        row = torch.stack([(torch.einsum("oik,ki->o", weight, window) + bias).relu() for window in windows])
    return row


@given(batch=padded(WIDTH), num_layers=st.integers(1, 3), kernel_size=st.sampled_from([1, 3, 7]))
@settings(deadline=None, max_examples=40)
@torch.inference_mode()
def test_a_padded_row_equals_the_row_alone(batch: tuple[Tensor, Tensor], num_layers: int, kernel_size: int) -> None:
    torch.manual_seed(num_layers)
    module = CnnEncoder(WIDTH, 4, num_layers, kernel_size)
    hidden, mask = batch
    (output,) = module(hidden, mask)
    assert (output[~mask] == 0).all()
    for row, keep in enumerate(mask):
        places = keep.nonzero().flatten().tolist()
        has_holes = any(after != before + 1 for before, after in pairwise(places))
        if places and not has_holes:
            torch.testing.assert_close(output[row, keep], convolve(module, hidden[row, keep]), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_hole_keeps_its_place_and_says_nothing() -> None:
    module = CnnEncoder(WIDTH, 4, num_layers=1, kernel_size=3)
    hidden, mask = torch.randn(1, 5, WIDTH), torch.tensor([[1, 1, 0, 1, 1]])
    (output,) = module(hidden, mask)
    hidden[0, 2] = 0
    expected = convolve(module, hidden[0])
    torch.testing.assert_close(output[0, [0, 1, 3, 4]], expected[[0, 1, 3, 4]], atol=1e-6, rtol=1e-5)
    assert (output[0, 2] == 0).all()


def test_reach_is_that_of_the_docstring() -> None:
    module = CnnEncoder(WIDTH, 4, num_layers=2, kernel_size=5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.abs_()  # so that every unit is alive
    hidden = torch.rand(1, 11, WIDTH, requires_grad=True)
    module(hidden)[0][0, 5].sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[0].abs().sum(dim=-1).nonzero().flatten().tolist() == list(range(1, 10))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel_size: an odd number needed, got 4"):
        CnnEncoder(WIDTH, 4, kernel_size=4)
    with pytest.raises(ValueError, match="num_layers: at least 1 needed, got 0"):
        CnnEncoder(WIDTH, 4, num_layers=0)
    with pytest.raises(ValueError, match=r"^mask: \[batch, seq\] needed"):
        CnnEncoder(WIDTH, 4)(torch.zeros(2, 3, WIDTH), torch.ones(2, 1, 3))
