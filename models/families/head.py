"""How the checkpoints of a family hold a head, free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from models.config import EncoderConfig
from models.head_config import HeadActivation, HeadConfig, HeadName, SparseActivation, SparsePooling, Tokens

# Where a name of a head holds this, the prefix of the encoder's own tensors goes.
ENCODER = "{encoder}"

_ACTIVATIONS: Mapping[str, HeadActivation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
_TOKENS: Mapping[str, Tokens] = {"cls": "first", "mean": "mean"}


class HeadError(ValueError):
    """A value of config.json that describes no head of ours. key, value: as the file has them."""

    def __init__(self, key: str, value: Any, expected: str) -> None:
        self.key, self.value, self.expected = key, value, expected
        super().__init__(f"{key}: {expected}, got {value!r:.80}")


@dataclass(frozen=True, slots=True)
class Head:
    """One head of a family.

    output, dense, norm: what checkpoints call these layers, "" = there is none. other_names: further names that a
    canonical parameter may have. activation: after the dense layer; `encoder` = the encoder's own.
    tokens: what of a row goes in. dense_dim: the field of EncoderConfig that is the width of the dense layer.
    has_dense_bias, has_norm_bias, has_output_bias: when config.json does not say.
    is_tied: the weight of the output layer is the word table, unless config.json's tie_word_embeddings is false.
    config_names: HeadConfig field → key of config.json that sets it.
    """

    output: str
    dense: str = ""
    norm: str = ""
    other_names: Mapping[str, str] = field(default_factory=dict)
    activation: HeadActivation | Literal["encoder"] = "identity"
    tokens: Tokens = "first"
    dense_dim: str = "dim"
    has_dense_bias: bool = True
    has_norm_bias: bool = True
    has_output_bias: bool = True
    is_tied: bool = False
    config_names: Mapping[str, str] = field(default_factory=dict)

    def read_config(
        self,
        name: HeadName,
        config: Mapping[str, Any],
        encoder: EncoderConfig,
        output_dim: int,
        sparse: tuple[SparsePooling, SparseActivation] = ("none", "relu"),
    ) -> HeadConfig:
        """The shape that a config.json describes. Raises HeadError naming the key that is not right.

        output_dim: labels, or the vocabulary. sparse: how its logits become one vector.
        """
        activation = self._choose(config, "activation", _ACTIVATIONS, self.activation)
        return HeadConfig(
            name=name,
            tokens=self._choose(config, "tokens", _TOKENS, self.tokens),
            output_dim=output_dim,
            dense_dim=getattr(encoder, self.dense_dim) if self.dense else 0,
            activation=encoder.activation if activation == "encoder" else activation,
            has_norm=bool(self.norm),
            has_dense_bias=self._flag(config, "has_dense_bias", self.has_dense_bias),
            has_norm_bias=self._flag(config, "has_norm_bias", self.has_norm_bias),
            has_output_bias=self._flag(config, "has_output_bias", self.has_output_bias),
            is_tied=self.is_tied and _read_flag(config, "tie_word_embeddings", True),
            sparse_pooling=sparse[0],
            sparse_activation=sparse[1],
        )

    def parameters(self, head: HeadConfig, prefix: str) -> dict[str, tuple[str, ...]]:
        """Every canonical parameter name of this shape, with the names that a checkpoint may have for it.

        prefix: of the encoder's own tensors.
        """
        parts = {"head.dense": self.dense, "head.norm": self.norm, "head.output": self.output}
        names: dict[str, tuple[str, ...]] = {}
        for ours in head.parameter_shapes(1):
            part, _, kind = ours.rpartition(".")
            found = [f"{parts[part]}.{kind}", *filter(None, [self.other_names.get(ours)])]
            names[ours] = tuple(name.replace(ENCODER, prefix) for name in found)
        return names

    def _choose(self, config: Mapping[str, Any], field_name: str, choices: Mapping[str, Any], default: Any) -> Any:
        key = self.config_names.get(field_name)
        if key is None or config.get(key) is None:
            return default
        value = config[key]
        if not isinstance(value, str) or value not in choices:
            raise HeadError(key, value, f"one of {', '.join(choices)} is needed")
        return choices[value]

    def _flag(self, config: Mapping[str, Any], field_name: str, default: bool) -> bool:
        key = self.config_names.get(field_name)
        return default if key is None else _read_flag(config, key, default)


def _read_flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise HeadError(key, value, "true or false is needed")
    return value
