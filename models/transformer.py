"""Transformer encoder stacks, over features or over token ids.

They compute what `nn.TransformerEncoder` does and return the weights that it hides; its state dict loads as it is.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from models.config import Activation, Norm
from models.layers import EncoderLayer, FeedForward
from models.signature import Declaration
from models.weighting import read_mask

Positions = Literal["sinusoidal", "learned", "none"]

# Parameters of `nn.TransformerEncoderLayer` → ours; those of its attention are renamed by the attention itself.
_TORCH_NAMES = {
    "self_attn": "attention",
    "linear1": "ffn.up",
    "linear2": "ffn.down",
    "norm1": "attention_norm",
    "norm2": "ffn_norm",
}
_TORCH_NAME = re.compile(rf"(layers\.\d+\.)({'|'.join(_TORCH_NAMES)})\.")


def sinusoidal_positions(seq: int, dim: int) -> Tensor:
    """sin and cos of `position / 10000^(2i / dim)` in columns 2i and 2i + 1 (Vaswani et al., 2017, §3.5).

    -> [seq, dim] float32
    """
    # Constants, not powers computed in the graph: at position 4,096 a last bit of a frequency is 1e-4 of an angle.
    frequencies = torch.tensor([10000.0 ** (-column / dim) for column in range(0, dim, 2)], dtype=torch.float32)
    angles = torch.arange(seq, dtype=torch.float32)[:, None] * frequencies  # [seq, ⌈dim / 2⌉]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :dim]  # [seq, dim]


class TransformerEncoder(nn.Module):
    """Positions added to features, then `num_layers` Transformer layers.

    norm: post (Vaswani et al., 2017) or pre (Xiong et al., 2020)
    positions: sinusoidal, learned (`max_positions` rows, the longest input), or none
    final_norm: a norm after the last layer; with pre-norm only, when not given
    Raises ValueError for an option that is not one of these, or when num_heads does not divide dim.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each option of the stack
        self,
        dim: int,
        num_heads: int,
        num_layers: int,
        ffn_dim: int,
        *,
        norm: Norm = "post",
        positions: Positions = "sinusoidal",
        max_positions: int | None = None,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        final_norm: bool | None = None,
    ) -> None:
        super().__init__()
        if positions not in get_args(Positions):
            raise ValueError(f"positions: {positions!r} is not one of {', '.join(get_args(Positions))}")
        if (positions == "learned") != (max_positions is not None):
            raise ValueError("max_positions: learned positions need it, the others have none")
        self.dim = dim
        self.num_heads = num_heads
        self.positions = positions
        self.position = None if max_positions is None else nn.Embedding(max_positions, dim)
        self.layers = nn.ModuleList(
            EncoderLayer(
                dim, num_heads, FeedForward(dim, ffn_dim, activation), norm=norm, layer_norm_eps=layer_norm_eps
            )
            for _ in range(num_layers)
        )
        has_norm = norm == "pre" if final_norm is None else final_norm
        self.norm = nn.LayerNorm(dim, eps=layer_norm_eps) if has_norm else None
        self.register_load_state_dict_pre_hook(_rename_torch_parameters)  # type: ignore[no-untyped-call]

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        attention = {"axes": ["batch", self.num_heads, "seq", "seq"], "meaning": "attention"}
        limits: Declaration = {} if self.position is None else {"max_sizes": {"seq": self.position.num_embeddings}}
        return limits | {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", self.dim]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "seq", self.dim]},
                **{f"weights_{layer}": attention | {"layer": layer} for layer in range(len(self.layers))},
            },
        }

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Encode a padded batch. What it gives at masked positions is finite and means nothing.

        hidden: [batch, seq, dim]; positions count from the first column, padding included
        mask: [batch, seq] or [batch or 1, seq, seq], True or 1 = attend; holes and empty rows are allowed
        -> output [batch, seq, dim], then for each layer weights [batch, heads, seq, seq]
        """
        if mask is not None and mask.dim() == 2:
            mask = mask.unsqueeze(1)  # [batch, 1, seq]
        keep = read_mask(mask, hidden.shape[0], hidden.shape[1])
        hidden = self._add_positions(hidden)
        attentions: list[Tensor] = []
        for layer in self.layers:
            hidden, weights = layer(hidden, keep)
            attentions.append(weights)
        return hidden if self.norm is None else self.norm(hidden), *attentions

    def _add_positions(self, hidden: Tensor) -> Tensor:
        seq = hidden.shape[1]
        if self.position is not None:
            summed: Tensor = hidden + self.position(torch.arange(seq, device=hidden.device))
            return summed
        if self.positions == "none":
            return hidden
        return hidden + sinusoidal_positions(seq, self.dim).to(hidden)


class TokenTransformer(nn.Module):
    """Word vectors times √dim (Vaswani et al., 2017, §3.4), then a `TransformerEncoder`.

    vocab_size: number of token ids; the other options are those of `TransformerEncoder`.
    """

    def __init__(self, vocab_size: int, dim: int, **options: Any) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, dim)
        self.encoder = TransformerEncoder(dim, **options)

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        declared = self.encoder.signature()
        ids = {"axes": ["batch", "seq"], "dtype": "int64", "meaning": "token_ids", "below": self.word.num_embeddings}
        return declared | {"inputs": {"input_ids": ids, "mask": declared["inputs"]["mask"]}}

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Encode a padded batch of token ids.

        input_ids: [batch, seq] int64
        mask: as in `TransformerEncoder`
        -> output [batch, seq, dim], then for each layer weights [batch, heads, seq, seq]
        """
        encoded: tuple[Tensor, ...] = self.encoder(self.word(input_ids) * math.sqrt(self.encoder.dim), mask)
        return encoded


def _rename_torch_parameters(_: nn.Module, tensors: dict[str, Any], prefix: str, *__: Any) -> None:
    for name in [name for name in tensors if name.startswith(prefix)]:
        ours = _TORCH_NAME.sub(lambda found: f"{found[1]}{_TORCH_NAMES[found[2]]}.", name)
        tensors[ours] = tensors.pop(name)
