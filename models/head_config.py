"""The shapes of heads and Dense modules, free of torch: what makes a task's output of an encoder's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, TypeVar, get_args

HeadName = Literal["sequence_classification", "token_classification", "masked_lm"]
HeadActivation = Literal["identity", "tanh", "relu", "gelu", "gelu_tanh", "silu", "sigmoid"]
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
        return _from_dict(cls, values, "head")


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """A Dense module of sentence-transformers: a linear map and its activation.

    has_residual: the input is added to what comes out, brought to its width by a map of its own where that is another.
    """

    input_dim: int
    output_dim: int
    activation: HeadActivation
    has_bias: bool = True
    has_residual: bool = False

    def __post_init__(self) -> None:
        if self.activation not in get_args(HeadActivation):
            raise ValueError(f"activation: {self.activation!r} is not one of {', '.join(get_args(HeadActivation))}")
        if min(self.input_dim, self.output_dim) < 1:
            raise ValueError(f"input_dim, output_dim: {self.input_dim}, {self.output_dim} are not widths")

    @property
    def has_residual_map(self) -> bool:
        """The residual has weights."""
        return self.has_residual and self.input_dim != self.output_dim

    def parameter_shapes(self, index: int) -> dict[str, tuple[int, ...]]:
        """The shape of every canonical parameter. index: of this module among several, from 0."""
        shapes: dict[str, tuple[int, ...]] = {f"dense.{index}.weight": (self.output_dim, self.input_dim)}
        if self.has_bias:
            shapes[f"dense.{index}.bias"] = (self.output_dim,)
        if self.has_residual_map:
            shapes[f"dense.{index}.residual.weight"] = (self.output_dim, self.input_dim)
        return shapes

    def to_dict(self) -> dict[str, str | int | bool]:
        """Plain values for the manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> DenseConfig:
        """The inverse of `to_dict`. Raises ValueError naming unknown or missing fields."""
        return _from_dict(cls, values, "dense")


C = TypeVar("C", HeadConfig, DenseConfig)


def _from_dict(kind: type[C], values: Mapping[str, object], what: str) -> C:
    if unknown := set(values) - {field.name for field in fields(kind)}:
        raise ValueError(f"unknown {what} fields: {', '.join(sorted(unknown))}")
    try:
        return kind(**values)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from None
