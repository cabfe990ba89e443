"""The shape of an encoder, free of torch: what the builder, the PyTorch modules and the manifest agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, get_args

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Norm = Literal["post", "pre"]
Positions = Literal["learned", "rotary"]
# What a field may hold: what a manifest can say.
EncoderValue = str | bool | int | float | tuple[int, ...]

_IS_RARE = "is_rare"


def rare(default: Any) -> Any:
    """A field that only some families have: at its default, no manifest and no fingerprint of vectors mentions it."""
    return field(default=default, metadata={_IS_RARE: True})


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """One Transformer encoder.

    position_offset: the position of the first token (0 for BERT).
    max_positions: rows of the position table; the longest input is max_positions - position_offset.
    num_token_types: 0 = no table of token types, and no input that tells them.
    embedding_dim: width of the tables, which a projection then brings to dim; 0 = dim, without one.
    num_layer_groups: how many groups of group_layers layers have weights of their own, one after the other used by as
    many layers as it takes; 0 = each layer has its own.
    num_relative_buckets: rows of the table of biases by relative position, which all layers share; 0 = none.
    positions: a learned table, whose rows are added to the words, or rotations of queries and keys in every layer.
    rotary_base, local_rotary_base: of the rotations' frequencies, in layers that attend everywhere and in local ones.
    norm: whether the sum after each part of a layer is normalised, or its input and, once, what the last layer gives.
    has_first_norm: False = the first layer's attention reads the embeddings as they are, which were normalised already.
    has_norm_bias, has_attention_bias, has_ffn_bias: whether norms and linear layers add one.
    is_ffn_gated: the feed-forward part multiplies its activated projection by a second one.
    local_layers: numbers of the layers that attend locally: to local_window positions on each side and to their own.
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
    embedding_dim: int = rare(0)
    num_layer_groups: int = rare(0)
    group_layers: int = rare(1)
    num_relative_buckets: int = rare(0)
    positions: Positions = rare("learned")  # noqa: RUF009
    rotary_base: float = rare(10_000.0)
    local_rotary_base: float = rare(10_000.0)
    norm: Norm = rare("post")  # noqa: RUF009
    has_first_norm: bool = rare(True)
    has_norm_bias: bool = rare(True)
    has_attention_bias: bool = rare(True)
    has_ffn_bias: bool = rare(True)
    is_ffn_gated: bool = rare(False)
    local_layers: tuple[int, ...] = rare(())
    local_window: int = rare(0)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "num_layers", "num_heads", "ffn_dim", "max_positions", "group_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1 needed, got {getattr(self, name)}")
        for name in ("num_token_types", "embedding_dim", "num_layer_groups", "num_relative_buckets"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: at least 0 needed, got {getattr(self, name)}")
        if self.num_layer_groups * self.group_layers > self.num_layers or self.num_layers % self.group_layers:
            groups = f"{self.num_layer_groups} groups of {self.group_layers} layers"
            raise ValueError(f"num_layer_groups: {groups} do not make up {self.num_layers} layers")
        if self.dim % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} heads do not divide dim {self.dim}")
        for name, choices in (("activation", Activation), ("norm", Norm), ("positions", Positions)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(get_args(choices))}")
        self._check_positions()

    def _check_positions(self) -> None:
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"num_heads: rotary positions turn pairs of columns, heads are {self.head_dim} wide")
        if self.local_window < 0 or any(not 0 <= layer < self.num_layers for layer in self.local_layers):
            local = f"{', '.join(map(str, self.local_layers))} with {self.local_window} positions on each side"
            raise ValueError(f"local_layers: {local} are not among {self.num_layers} layers")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.num_heads

    @property
    def max_tokens(self) -> int:
        """The longest input that the position table has room for."""
        return self.max_positions - self.position_offset

    @property
    def table_dim(self) -> int:
        """Width of the tables of words, positions and token types."""
        return self.embedding_dim or self.dim

    @property
    def num_weight_sets(self) -> int:
        """How many layers have weights of their own."""
        return self.num_layer_groups * self.group_layers or self.num_layers

    def weight_set(self, layer: int) -> int:
        """Which of them a layer uses."""
        if not self.num_layer_groups:
            return layer
        step, inner = divmod(layer, self.group_layers)
        # In floating point, as transformers does: in whole numbers, a group may begin one layer earlier.
        group = int(step / (self.num_layers // self.group_layers / self.num_layer_groups))
        return group * self.group_layers + inner

    def to_dict(self) -> dict[str, EncoderValue]:
        """Plain values for the manifest."""
        said = (entry for entry in fields(self) if not self._is_unsaid(entry))
        return {entry.name: getattr(self, entry.name) for entry in said}

    def _is_unsaid(self, entry: Field[Any]) -> bool:
        return _IS_RARE in entry.metadata and bool(getattr(self, entry.name) == entry.default)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> EncoderConfig:
        """The inverse of `to_dict`. Raises ValueError naming unknown or missing fields."""
        known = {entry.name for entry in fields(cls)}
        if unknown := set(values) - known:
            raise ValueError(f"unknown encoder fields: {', '.join(sorted(unknown))}")
        try:
            return cls(**values)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(f"encoder: {error}") from None
