"""Attention pooling against its formula; over encoders, padding changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from models.attention_pooling import AttentionPooling, PooledEncoder
from tests.fixtures.masks import make_mask, padded

torch.set_num_threads(1)
WIDTH = 5
OPTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"num_layers": 2, "bidirectional": True},
    "gru": {"bidirectional": False},
    "cnn": {"num_layers": 2, "kernel_size": 3},
}


def make_encoder(name: str) -> PooledEncoder:
    torch.manual_seed(3)
    return PooledEncoder(name, {"input_dim": WIDTH, "hidden_dim": 4} | OPTIONS[name], attention_dim=6)


@given(batch=padded(WIDTH))
@settings(deadline=None, max_examples=40)
@torch.inference_mode()
def test_equals_the_formula_over_kept_positions(batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    module = AttentionPooling(WIDTH, 4)
    hidden, mask = batch
    output, weights = module(hidden, mask)
    assert weights.shape == (len(hidden), 1, hidden.shape[1])
    assert (weights[~mask.unsqueeze(1)] == 0).all()
    torch.testing.assert_close(weights.sum(dim=(1, 2)), mask.any(dim=1).float(), atol=1e-5, rtol=0)
    for row, keep in enumerate(mask):
        kept = hidden[row, keep]
        scores = [module.query @ (module.key.weight @ vector + module.key.bias).tanh() for vector in kept]
        expected = torch.stack(scores).softmax(dim=0) @ kept if scores else torch.zeros(WIDTH)
        torch.testing.assert_close(output[row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["right", "left"])
@pytest.mark.parametrize("name", OPTIONS)
@torch.inference_mode()
def test_a_padded_row_equals_the_row_alone(name: str, kind: str) -> None:
    module = make_encoder(name)
    hidden, mask = torch.randn(4, 9, WIDTH), make_mask(kind, 4, 9)
    output, weights = module(hidden, mask)
    for row, keep in enumerate(mask):
        alone, alone_weights = module(hidden[row : row + 1, keep])
        torch.testing.assert_close(output[row : row + 1], alone, atol=1e-6, rtol=0)
        torch.testing.assert_close(weights[row : row + 1, :, keep], alone_weights, atol=1e-6, rtol=0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="encoder: rnn is not one of lstm, gru, cnn"):
        PooledEncoder("rnn", {}, attention_dim=4)
    with pytest.raises(ValueError, match=r"^mask: \[batch, seq\] needed"):
        AttentionPooling(WIDTH, 4)(torch.zeros(2, 3, WIDTH), torch.ones(2, 1, 3))
