"""The BERT encoder: embeddings, then post-norm Transformer layers (Devlin et al., 2019).

Module names spell the canonical parameter names of `models.families.family`. Knows no pooling and no file.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.config import EncoderConfig
from models.layers import EncoderLayer, FeedForward


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


def _layer(config: EncoderConfig) -> EncoderLayer:
    ffn = FeedForward(config.dim, config.ffn_dim, config.activation)
    return EncoderLayer(config.dim, config.num_heads, ffn, layer_norm_eps=config.layer_norm_eps)


class Encoder(nn.Module):
    """A whole encoder of the shape `config`; weights are random until loaded (`models.loading`)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(_layer(config) for _ in range(config.num_layers))

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
