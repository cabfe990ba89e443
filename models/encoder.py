"""The BERT encoder: embeddings, then post-norm Transformer layers (Devlin et al., 2019).

Module names spell the canonical parameter names of `models.families`. Knows no pooling and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.multi_head import MultiHeadAttention
from models.config import Activation, EncoderConfig

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda hidden: functional.gelu(hidden, approximate="tanh"),
    "relu": functional.relu,
}


class Embeddings(nn.Module):
    """Word, position and token-type vectors, added and normalised."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.position_offset = config.position_offset
        self.word = nn.Embedding(config.vocab_size, config.dim)
        self.position = nn.Embedding(config.max_positions, config.dim)
        self.token_type = nn.Embedding(config.num_token_types, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Positions count from the first column, padding included.

        input_ids, token_type_ids: [batch, seq] int64
        -> [batch, seq, dim]
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + self.position_offset
        summed = self.word(input_ids) + self.token_type(token_type_ids) + self.position(positions)
        normed: Tensor = self.norm(summed)
        return normed


class FeedForward(nn.Module):
    """Widen, activate, narrow: each position alone."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.dim, config.ffn_dim)
        self.down = nn.Linear(config.ffn_dim, config.dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: [batch, seq, dim] -> [batch, seq, dim]."""
        narrowed: Tensor = self.down(self.activation(self.up(hidden)))
        return narrowed


class EncoderLayer(nn.Module):
    """Attention, then feed-forward; each added to its input and normalised afterwards (post-norm)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config.dim, config.num_heads)
        self.attention_norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)
        self.ffn = FeedForward(config)
        self.ffn_norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """One layer.

        hidden: [batch, seq, dim]
        mask: [batch, 1, seq]
        -> hidden [batch, seq, dim], weights [batch, heads, seq, seq]
        """
        mixed, weights = self.attention(hidden, hidden, hidden, mask)
        hidden = self.attention_norm(hidden + mixed)
        return self.ffn_norm(hidden + self.ffn(hidden)), weights


class Encoder(nn.Module):
    """A whole encoder of the shape `config`; weights are random until loaded (`models.loading`)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Encode a padded batch. What it gives at masked positions is finite and means nothing.

        input_ids: [batch, seq] int64
        attention_mask: [batch, seq], 1 = attend; padding on either side, holes and empty rows are allowed
        token_type_ids: [batch, seq] int64
        -> hidden [batch, seq, dim], per layer weights [batch, heads, seq, seq]
        """
        hidden = self.embeddings(input_ids, token_type_ids)  # [batch, seq, dim]
        mask = attention_mask.bool().unsqueeze(1)  # [batch, 1, seq]
        attentions: list[Tensor] = []
        for layer in self.layers:
            hidden, weights = layer(hidden, mask)
            attentions.append(weights)
        return hidden, tuple(attentions)
