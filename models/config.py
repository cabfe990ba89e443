"""The shape of an encoder, free of torch: what the builder, the PyTorch modules and the manifest agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

Activation = Literal["gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """One Transformer encoder.

    position_offset: the position of the first token (0 for BERT).
    max_positions: rows of the position table; the longest input is max_positions - position_offset.
    """

    family: str
    vocab_size: int
    dim: int
    num_layers: int
    num_heads: int
    ffn_dim: int
    max_positions: int
    num_token_types: int
    layer_norm_eps: float
    activation: Activation
    pad_token_id: int = 0
    position_offset: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "num_layers", "num_heads", "ffn_dim", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1 needed, got {getattr(self, name)}")
        if self.dim % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} heads do not divide dim {self.dim}")
        if self.activation not in get_args(Activation):
            raise ValueError(f"activation: {self.activation!r} is not one of {', '.join(get_args(Activation))}")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.num_heads

    def to_dict(self) -> dict[str, str | int | float]:
        """Plain values for the manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> EncoderConfig:
        """The inverse of `to_dict`. Raises ValueError naming unknown or missing fields."""
        known = {field.name for field in fields(cls)}
        if unknown := set(values) - known:
            raise ValueError(f"unknown encoder fields: {', '.join(sorted(unknown))}")
        try:
            return cls(**values)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(f"encoder: {error}") from None
