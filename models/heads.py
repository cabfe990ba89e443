"""What stands on an encoder: heads that give logits or sparse vectors, and Dense modules.

Module names spell the canonical parameter names of `models.head_config`, without `head.` and `dense.`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import EncoderConfig
from models.head_config import DenseConfig, HeadActivation, HeadConfig
from models.pooling import cls_pool, mean_pool

ACTIVATIONS: Mapping[HeadActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda hidden: hidden,
    "tanh": torch.tanh,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda hidden: functional.gelu(hidden, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}


class Head(nn.Module):
    """A head of the shape `config`; weights are random until loaded (`models.loading`)."""

    def __init__(self, encoder: EncoderConfig, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        width = config.dense_dim or encoder.dim
        self.dense = nn.Linear(encoder.dim, width, bias=config.has_dense_bias) if config.dense_dim else nn.Identity()
        self.activation = ACTIVATIONS[config.activation]
        self.norm = (
            nn.LayerNorm(width, eps=encoder.layer_norm_eps, bias=config.has_norm_bias)
            if config.has_norm
            else nn.Identity()
        )
        self.output = nn.Linear(width, config.output_dim, bias=config.has_output_bias)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """What the head makes of a padded batch; what it gives at masked tokens means nothing.

        hidden: [batch, seq, dim]
        mask: [batch, seq], 1 = counts
        -> [batch, output_dim]; of each token [batch, seq, output_dim]
        """
        if self.config.tokens == "first":
            hidden = cls_pool(hidden, mask)  # [batch, dim]
        elif self.config.tokens == "mean":
            hidden = mean_pool(hidden, mask)  # [batch, dim]
        logits: Tensor = self.output(self.norm(self.activation(self.dense(hidden))))
        return logits if self.config.sparse_pooling == "none" else self._sparse(logits, mask)

    def _sparse(self, logits: Tensor, mask: Tensor) -> Tensor:
        """SPLADE (Formal et al., 2021): log(1 + relu) of each token's logits, then their max or sum.

        logits: [batch, seq, vocab]; mask: [batch, seq] -> [batch, vocab]
        """
        weights = torch.relu(logits * mask.unsqueeze(-1).to(logits.dtype)).log1p()
        if self.config.sparse_activation == "log1p_relu":
            weights = weights.log1p()
        return weights.amax(dim=1) if self.config.sparse_pooling == "max" else weights.sum(dim=1)


class Dense(nn.Module):
    """A Dense module of sentence-transformers, over vectors of any batch."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.has_residual = config.has_residual
        self.weight = nn.Parameter(torch.empty(config.output_dim, config.input_dim))
        self.bias = nn.Parameter(torch.empty(config.output_dim)) if config.has_bias else None
        self.residual = (
            nn.Linear(config.input_dim, config.output_dim, bias=False) if config.has_residual_map else nn.Identity()
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: [..., input_dim] -> [..., output_dim]"""
        found = self.activation(functional.linear(vectors, self.weight, self.bias))
        return found + self.residual(vectors) if self.has_residual else found
