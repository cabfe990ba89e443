"""Pooling by attention: one learned query reads all positions of a row; alone, or over an encoder that knows order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.convolutional import CnnEncoder
from models.recurrent import GruEncoder, LstmEncoder
from models.signature import Declaration
from models.weighting import softmax_weights

ENCODERS: Mapping[str, Callable[..., LstmEncoder | GruEncoder | CnnEncoder]] = {
    "lstm": LstmEncoder,
    "gru": GruEncoder,
    "cnn": CnnEncoder,
}


class AttentionPooling(nn.Module):
    """softmax(qᵀ tanh(W h + b)) with one learned query q for all rows (Yang et al., 2016, §2.2, word attention).

    dim: width of the input; attention_dim: of the space in which the query is compared.
    """

    def __init__(self, dim: int, attention_dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.key = nn.Linear(dim, attention_dim)
        self.query = nn.Parameter(torch.randn(attention_dim) / attention_dim**0.5)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Average of the positions, weighted by how well they match the query. An empty row gives zeros.

        hidden: [batch, seq, dim]
        mask: [batch, seq], True or 1 = attend; None = attend everywhere; raises ValueError for another number of axes
        -> output [batch, dim], weights [batch, 1, seq]
        """
        if mask is not None and mask.dim() != 2:
            raise ValueError(f"mask: [batch, seq] needed, got shape {tuple(mask.shape)}")
        scores = (self.key(hidden).tanh() @ self.query).unsqueeze(1)  # [batch, 1, seq]
        weights = softmax_weights(scores, None if mask is None else mask.bool().unsqueeze(1))
        return (weights @ hidden).squeeze(1), weights

    def signature(self) -> Declaration:
        """Inputs and outputs, as `models.signature` says."""
        return {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", self.dim]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", self.dim]},
                "weights": {"axes": ["batch", 1, "seq"], "meaning": "attention"},
            },
        }


class PooledEncoder(nn.Module):
    """An encoder with attention pooling over its outputs.

    encoder: a name of `ENCODERS`; options: what its class takes; attention_dim: as in `AttentionPooling`.
    Raises ValueError for another name.
    """

    def __init__(self, encoder: str, options: Mapping[str, Any], attention_dim: int) -> None:
        super().__init__()
        if encoder not in ENCODERS:
            raise ValueError(f"encoder: {encoder} is not one of {', '.join(ENCODERS)}")
        self.encoder = ENCODERS[encoder](**options)
        self.pooling = AttentionPooling(self.encoder.dim, attention_dim)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode, then pool; the mask is applied to both.

        hidden: [batch, seq, input_dim]
        mask: [batch, seq], True or 1 = attend; None = attend everywhere
        -> output [batch, dim], weights [batch, 1, seq]
        """
        encoded = self.encoder(hidden, mask)[0]  # [batch, seq, dim]
        output, weights = self.pooling(encoded, mask)
        return output, weights

    def signature(self) -> Declaration:
        """Inputs and outputs, as `models.signature` says."""
        return {"inputs": self.encoder.signature()["inputs"], "outputs": self.pooling.signature()["outputs"]}
