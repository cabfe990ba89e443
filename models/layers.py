"""The Transformer layer, pre-norm or post-norm: what the encoders are stacked of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

from torch import Tensor, nn
from torch.nn import functional

from models.config import Activation, Norm
from models.multi_head import MultiHeadAttention
from models.weighting import read_mask

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda hidden: functional.gelu(hidden, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


class FeedForward(nn.Module):
    """Widen, activate, narrow: each position alone.

    is_gated: what is activated is a second widening, which multiplies the first (Shazeer, 2020)
    Raises ValueError for an activation not in `ACTIVATIONS`.
    """

    def __init__(
        self, dim: int, ffn_dim: int, activation: Activation, *, is_gated: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[activation]
        self.gate = nn.Linear(dim, ffn_dim, bias=bias) if is_gated else None
        self.up = nn.Linear(dim, ffn_dim, bias=bias)
        self.down = nn.Linear(ffn_dim, dim, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: [batch, seq, dim] -> [batch, seq, dim]."""
        wide = self.up(hidden)  # [batch, seq, ffn]
        wide = self.activation(wide) if self.gate is None else self.activation(self.gate(hidden)) * wide
        narrowed: Tensor = self.down(wide)
        return narrowed


class EncoderLayer(nn.Module):
    """Attention, then feed-forward, each added to its input; what is normalised is the sum or the input.

    norm: post (Vaswani et al., 2017, §5.4) or pre (Xiong et al., 2020)
    bias, norm_bias: whether attention's linear maps and the norms add one
    has_attention_norm: False = attention reads the input of the layer as it is
    rotary_base: as in `MultiHeadAttention`
    Raises ValueError for another norm or activation, or when num_heads does not divide dim.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each option of the layer
        self,
        dim: int,
        num_heads: int,
        ffn: FeedForward,
        *,
        norm: Norm = "post",
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        norm_bias: bool = True,
        has_attention_norm: bool = True,
        rotary_base: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in get_args(Norm):
            raise ValueError(f"norm: {norm!r} is not one of {', '.join(get_args(Norm))}")
        self.norm = norm
        self.attention = MultiHeadAttention(dim, num_heads, bias=bias, rotary_base=rotary_base)
        has_norm = has_attention_norm
        self.attention_norm = nn.LayerNorm(dim, eps=layer_norm_eps, bias=norm_bias) if has_norm else nn.Identity()
        self.ffn = ffn
        self.ffn_norm = nn.LayerNorm(dim, eps=layer_norm_eps, bias=norm_bias)

    def forward(self, hidden: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One layer.

        hidden: [batch, seq, dim]
        mask: [batch or 1, seq or 1, seq], True or 1 = attend; None = attend everywhere
        bias: added to the scores of attention, [heads, seq, seq]
        -> hidden [batch, seq, dim], weights [batch, heads, seq, seq]
        """
        if self.norm == "pre":
            normed = self.attention_norm(hidden)
            mixed, weights = self._attend(normed, mask, bias)
            hidden = hidden + mixed
            return hidden + self.ffn(self.ffn_norm(hidden)), weights
        mixed, weights = self._attend(hidden, mask, bias)
        hidden = self.attention_norm(hidden + mixed)
        return self.ffn_norm(hidden + self.ffn(hidden)), weights

    def _attend(self, hidden: Tensor, mask: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        keep = read_mask(mask, hidden.shape[0], hidden.shape[1])
        return self.attention.attend(hidden, hidden, hidden, keep, bias=bias)
