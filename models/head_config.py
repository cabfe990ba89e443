"""The shape of a head, free of torch: what stands on an encoder and makes a task's output of its hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

HeadName = Literal["sequence_classification", "token_classification", "masked_lm"]
HeadActivation = Literal["identity", "tanh", "relu", "gelu", "gelu_tanh", "silu"]
Tokens = Literal["first", "mean", "each"]
SparsePooling = Literal["none", "max", "sum"]
SparseActivation = Literal["relu", "log1p_relu"]

_CHOICES = {
    "name": get_args(HeadName),
    "activation": get_args(HeadActivation),
    "tokens": get_args(Tokens),
    "sparse_pooling": get_args(SparsePooling),
    "sparse_activation": get_args(SparseActivation),
}


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A head: a dense layer with its activation and norm, as far as there are any, then the output layer.

    name: which of its family's heads. tokens: what of a row goes in: the first token that counts, the mean of all that
    do, or each by itself. dense_dim: width of the dense layer, 0 = there is none. is_tied: the weight of the output
    layer is the word table. sparse_pooling: how the vocabulary's logits of all tokens become one sparse vector, none =
    they do not; sparse_activation: what is applied to them before the last log(1 + x).
    """

    name: HeadName
    tokens: Tokens
    output_dim: int
    dense_dim: int = 0
    activation: HeadActivation = "identity"
    has_norm: bool = False
    has_dense_bias: bool = True
    has_norm_bias: bool = True
    has_output_bias: bool = True
    is_tied: bool = False
    sparse_pooling: SparsePooling = "none"
    sparse_activation: SparseActivation = "relu"

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise ValueError(f"{field}: {getattr(self, field)!r} is not one of {', '.join(choices)}")
        if self.output_dim < 1 or self.dense_dim < 0:
            raise ValueError(f"output_dim, dense_dim: {self.output_dim}, {self.dense_dim} are not widths")

    def parameter_shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """The shape of every canonical parameter but a tied one. dim: of the encoder."""
        width = self.dense_dim or dim
        shapes: dict[str, tuple[int, ...]] = {}
        if self.dense_dim:
            shapes["head.dense.weight"] = (width, dim)
            shapes |= {"head.dense.bias": (width,)} if self.has_dense_bias else {}
        if self.has_norm:
            shapes["head.norm.weight"] = (width,)
            shapes |= {"head.norm.bias": (width,)} if self.has_norm_bias else {}
        if not self.is_tied:
            shapes["head.output.weight"] = (self.output_dim, width)
        return shapes | ({"head.output.bias": (self.output_dim,)} if self.has_output_bias else {})

    def to_dict(self) -> dict[str, str | int | bool]:
        """Plain values for the manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> HeadConfig:
        """The inverse of `to_dict`. Raises ValueError naming unknown or missing fields."""
        if unknown := set(values) - {field.name for field in fields(cls)}:
            raise ValueError(f"unknown head fields: {', '.join(sorted(unknown))}")
        try:
            return cls(**values)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(f"head: {error}") from None
