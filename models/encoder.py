"""The text encoder: embeddings, then Transformer layers, of every shape that `EncoderConfig` describes.

Module names spell the canonical parameter names of `models.families.parameters`. Knows no pooling and no file.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.config import EncoderConfig
from models.layers import EncoderLayer, FeedForward
from models.relative import RelativeBias


class Embeddings(nn.Module):
    """Vectors of words, positions and, if any, token types: added, normalised and, if narrower, brought to dim."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.position_offset = config.position_offset
        width = config.table_dim
        num_positions = config.max_positions if config.positions == "learned" else 0
        self.word = nn.Embedding(config.vocab_size, width)
        self.position = nn.Embedding(num_positions, width) if num_positions else None
        self.token_type = nn.Embedding(config.num_token_types, width) if config.num_token_types else None
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.has_norm_bias)
        self.project = nn.Linear(width, config.dim) if config.embedding_dim else None

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Positions count from the first column, padding included.

        input_ids: [batch, seq] int64
        token_type_ids: [batch, seq] int64; None = all of type 0
        -> [batch, seq, dim]
        """
        summed = self.word(input_ids)  # [batch, seq, table_dim]
        if self.token_type is not None:
            summed = summed + self.token_type(torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids)
        if self.position is not None:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device) + self.position_offset
            summed = summed + self.position(positions)
        normed: Tensor = self.norm(summed)
        return normed if self.project is None else self.project(normed)


def _layer(config: EncoderConfig, index: int) -> EncoderLayer:
    base = config.local_rotary_base if index in config.local_layers else config.rotary_base
    ffn = FeedForward(
        config.dim, config.ffn_dim, config.activation, is_gated=config.is_ffn_gated, bias=config.has_ffn_bias
    )
    return EncoderLayer(
        config.dim,
        config.num_heads,
        ffn,
        norm=config.norm,
        layer_norm_eps=config.layer_norm_eps,
        bias=config.has_attention_bias,
        norm_bias=config.has_norm_bias,
        has_attention_norm=bool(index) or config.has_first_norm,
        rotary_base=base if config.positions == "rotary" else None,
    )


class Encoder(nn.Module):
    """A whole encoder of the shape `config`; weights are random until loaded (`models.loading`)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.relative_bias = None
        if config.num_relative_buckets:
            self.relative_bias = RelativeBias(config.num_relative_buckets, config.num_heads)
        self.layers = nn.ModuleList(_layer(config, index) for index in range(config.num_weight_sets))
        self.final_norm = None
        if config.norm == "pre":
            self.final_norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps, bias=config.has_norm_bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Encode a padded batch. What it gives at masked positions is finite and means nothing.

        input_ids: [batch, seq] int64
        attention_mask: [batch, seq], 1 = attend; padding on either side, holes and empty rows are allowed
        token_type_ids: [batch, seq] int64; None = all of type 0
        -> hidden [batch, seq, dim], per layer weights [batch, heads, seq, seq]
        """
        hidden = self.embeddings(input_ids, token_type_ids)  # [batch, seq, dim]
        mask = attention_mask.bool().unsqueeze(1)  # [batch, 1, seq]
        near = mask & _window(mask.shape[-1], self.config.local_window, mask.device)  # [batch, seq, seq]
        bias = None if self.relative_bias is None else self.relative_bias(input_ids.shape[1])  # [heads, seq, seq]
        attentions: list[Tensor] = []
        for number in range(self.config.num_layers):
            layer = self.layers[self.config.weight_set(number)]
            hidden, weights = layer(hidden, near if number in self.config.local_layers else mask, bias)
            attentions.append(weights)
        return hidden if self.final_norm is None else self.final_norm(hidden), tuple(attentions)


def _window(seq: int, window: int, device: torch.device) -> Tensor:
    """Which positions are at most `window` apart -> [1, seq, seq] bool."""
    positions = torch.arange(seq, device=device)
    return ((positions[:, None] - positions).abs() <= window).unsqueeze(0)
