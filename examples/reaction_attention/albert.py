"""ALBERT with its attention, made of the parts in `models`: what `qkv export` takes as a user's own module.

Beside BERT it saves twice (Lan et al., 2020, §3.1): word vectors are narrower than the model, and one Transformer layer
is run `num_layers` times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from models.config import EncoderConfig
from models.encoder import Embeddings
from models.layers import EncoderLayer, FeedForward
from models.signature import Declaration
from models.weighting import read_mask


class ReactionAlbert(nn.Module):
    """An ALBERT encoder without heads, for single sequences: every token is of type 0.

    embedding_dim: width of the word vectors; shape: the fields of `EncoderConfig` but its family.
    Raises ValueError for a shape that is none.
    """

    def __init__(self, embedding_dim: int, **shape: Any) -> None:
        super().__init__()
        self.config = config = EncoderConfig(family="albert", **shape)
        self.embeddings = Embeddings(replace(config, dim=embedding_dim))
        self.widen = nn.Linear(embedding_dim, config.dim)
        ffn = FeedForward(config.dim, config.ffn_dim, config.activation)
        self.layer = EncoderLayer(config.dim, config.num_heads, ffn, layer_norm_eps=config.layer_norm_eps)

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        config = self.config
        ids = {"axes": ["batch", "seq"], "dtype": "int64", "meaning": "token_ids", "below": config.vocab_size}
        attention = {"axes": ["batch", config.num_heads, "seq", "seq"], "meaning": "attention"}
        return {
            "inputs": {"input_ids": ids, "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"}},
            "outputs": {
                "hidden": {"axes": ["batch", "seq", config.dim]},
                **{f"weights_{layer}": attention | {"layer": layer} for layer in range(config.num_layers)},
            },
            "max_sizes": {"seq": config.max_positions},
        }

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Encode a padded batch. What it gives at masked positions is finite and means nothing.

        input_ids: [batch, seq] int64
        mask: [batch, seq], True or 1 = attend
        -> hidden [batch, seq, dim], then for each layer weights [batch, heads, seq, seq]
        """
        if mask is not None:
            mask = mask.unsqueeze(1)  # [batch, 1, seq]
        keep = read_mask(mask, *input_ids.shape)
        hidden = self.widen(self.embeddings(input_ids, torch.zeros_like(input_ids)))  # [batch, seq, dim]
        attentions: list[Tensor] = []
        for _ in range(self.config.num_layers):
            hidden, weights = self.layer(hidden, keep)
            attentions.append(weights)
        return hidden, *attentions
