"""What a family of encoders is, free of torch: how its checkpoints name their config fields and their weights.

Canonical parameter names (ours, in PyTorch and in the builder) are words: `layers.0.attention.query.weight`.
A family says what its checkpoints call them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from models.config import EncoderConfig
from models.families.head import Head
from models.families.parameters import parameter_shapes, split_layer
from models.head_config import HeadName

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


# The largest dimension that ONNX and PyTorch agree on without question.
_MAX_WHOLE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """A value of config.json that cannot be read. key: as the file names it. expected: what would be right."""

    key: str
    value: Any
    expected: str


class ConfigError(ValueError):
    """A config.json that describes no encoder of ours, with every fault found."""

    def __init__(self, faults: Iterable[ConfigFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{fault.key}: {fault.expected}, got {fault.value!r:.80}" for fault in self.faults))


# Checkpoints converted from TensorFlow call the two parameters of a LayerNorm so.
_OLD_SUFFIXES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


@dataclass(frozen=True, slots=True)
class Rows:
    """One of several equal groups of rows of a published tensor. index: which, from 0; count: how many there are."""

    index: int = 0
    count: int = 1

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the published tensor. shape: of the group"""
        return (shape[0] * self.count, *shape[1:])

    def bounds(self, shape: tuple[int, ...]) -> slice:
        """Where the group lies in the published tensor. shape: of the group"""
        return slice(self.index * shape[0], (self.index + 1) * shape[0])


ALL_ROWS = Rows()
# Query, key and value one below the other in one published tensor.
FUSED_QKV = {f"layers.{{i}}.attention.{part}": Rows(index, 3) for index, part in enumerate(("query", "key", "value"))}


def _read_no_more(_: Mapping[str, Any], __: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """One family of checkpoints.

    config_names: EncoderConfig field → key of config.json. config_defaults: values of absent keys, and of fields that
    have no key. config_aliases: another name of a key → the key.
    weight_names: canonical name → checkpoint name, `{i}` = layer number, or `{group}` and `{inner}` where layers share.
    layer_prefix: how those of a layer, or of a group of layers, begin.
    prefixes: what a checkpoint may put before every name, tried in order.
    unused: prefixes of checkpoint names that the encoder does not need.
    nullable: fields that may be null, which means their default.
    derive: fields that follow from the values of others. Raises ConfigError for values that do not go together.
    heads: what may stand on its encoders.
    weight_rows: canonical name without `.weight` or `.bias` → the rows that it is of a tensor that checkpoints hold for
    several of them.
    fixed: keys of config.json with which something else would be computed, and the one value that they may have.
    read_more: fields that are not one key each, from a config.json and the values by field. Raises ConfigError.
    """

    name: str
    config_names: Mapping[str, str]
    config_defaults: Mapping[str, Any]
    weight_names: Mapping[str, str]
    layer_prefix: str
    prefixes: tuple[str, ...]
    unused: tuple[str, ...]
    config_aliases: Mapping[str, str] = dataclass_field(default_factory=dict)
    nullable: tuple[str, ...] = ("pad_token_id",)
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    heads: Mapping[HeadName, Head] = dataclass_field(default_factory=dict)
    weight_rows: Mapping[str, Rows] = dataclass_field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclass_field(default_factory=dict)
    read_more: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = _read_no_more

    def read_config(self, config: Mapping[str, Any]) -> EncoderConfig:
        """The shape that a config.json describes. Raises ConfigError with every key that is missing or not right."""
        values = dict(self.config_defaults) | self._read(config)
        faults, more = [*self._faults(config, values)], {}
        try:
            wrong = {fault.key for fault in faults}
            right = {field: value for field, value in values.items() if self.config_names.get(field) not in wrong}
            more = dict(self.read_more(config, right))
        except ConfigError as error:
            faults += error.faults
        if faults:
            raise ConfigError(faults)
        values |= more
        known = {"family": self.name, "activation": _ACTIVATIONS[values["activation"]]}
        return EncoderConfig.from_dict(dict(self.derive(values)) | known)

    def _read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a config.json says, by field."""
        known = {key: config[alias] for alias, key in self.config_aliases.items() if alias in config} | dict(config)
        read = {field: known[key] for field, key in self.config_names.items() if key in known}
        return {field: value for field, value in read.items() if value is not None or field not in self.nullable}

    def _faults(self, config: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[ConfigFault]:
        wrong = set()
        for field, key in self.config_names.items():
            expected, is_right = _FIELDS.get(field, _COUNT)
            if field not in values or not is_right(values[field]):
                wrong.add(field)
                yield ConfigFault(key, values.get(field), expected)
        names = self.config_names
        if not wrong & {"dim", "num_heads"} and values["dim"] % values["num_heads"]:
            expected = f"a divisor of {names['dim']}, which is {values['dim']}, is needed"
            yield ConfigFault(names["num_heads"], values["num_heads"], expected)
        if not wrong & {"pad_token_id", "vocab_size"} and values["pad_token_id"] >= values["vocab_size"]:
            expected = f"an id below {names['vocab_size']}, which is {values['vocab_size']}, is needed"
            yield ConfigFault(names["pad_token_id"], values["pad_token_id"], expected)
        for alias, key in self.config_aliases.items():
            if alias in config and config[alias] != config.get(key, config[alias]):
                yield ConfigFault(alias, config[alias], f"another name of {key}, which is {config[key]}")
        for key, needed in self.fixed.items():
            if config.get(key) not in (None, needed):
                yield ConfigFault(key, config[key], f"{json.dumps(needed)} is needed")
        if (kind := config.get("position_embedding_type") or "absolute") != "absolute":
            yield ConfigFault("position_embedding_type", kind, "absolute is needed")

    def parameters(self, config: EncoderConfig) -> dict[str, str]:
        """Every canonical parameter name of this shape, with its checkpoint name (prefix not included)."""
        names = {}
        for ours in parameter_shapes(config):
            index, template = split_layer(ours)
            group, inner = divmod(index, config.group_layers)
            names[ours] = self.weight_names[template].format(i=index, group=group, inner=inner)
        return names

    def rows(self, ours: str) -> Rows:
        """Which rows of its tensor a parameter is, by its canonical name."""
        part, _, _ = split_layer(ours)[1].rpartition(".")
        return self.weight_rows.get(part, ALL_ROWS)

    def find_prefix(self, names: Iterable[str]) -> str:
        """The prefix that this checkpoint uses.

        Raises ValueError when its word table has none of the known names, and when it has several: two encoders.
        """
        present = set(names)
        anchor = self.weight_names["embeddings.word.weight"]
        found = [prefix for prefix in self.prefixes if prefix + anchor in present]
        if len(found) == 1:
            return found[0]
        if found:
            tables = " and ".join(prefix + anchor for prefix in found)
            raise ValueError(f"weights: {tables} are there: the weights of one encoder are needed, got {len(found)}")
        raise ValueError(f"weights: no tensor named {' or '.join(p + anchor for p in self.prefixes)}")

    def count_layers(self, names: Iterable[str], prefix: str) -> int:
        """How many layers, or groups of layers, from the first one on, have any tensor in a checkpoint."""
        start, _, end = (prefix + self.layer_prefix).partition("{i}")
        pattern = re.compile(rf"{re.escape(start)}(0|[1-9][0-9]{{0,8}}){re.escape(end)}")
        found = {int(match[1]) for name in names if (match := pattern.match(name))}
        return next(count for count in range(len(found) + 1) if count not in found)


def find_name(name: str, present: Container[str]) -> str | None:
    """What a checkpoint calls this tensor, by its new name or its old one. None when it has neither."""
    old = name
    for suffix, older in _OLD_SUFFIXES.items():
        if name.endswith(suffix):
            old = name.removesuffix(suffix) + older
    return next((candidate for candidate in (name, old) if candidate in present), None)


def find_any(names: Iterable[str], present: Container[str]) -> str | None:
    """What a checkpoint calls a tensor that may have one of several names. None when it has none of them."""
    return next((found for name in names if (found := find_name(name, present)) is not None), None)


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= _MAX_WHOLE


# EncoderConfig field → what its value must be, in words and as a question.
_Check = tuple[str, Callable[[Any], bool]]
_COUNT: _Check = ("a whole number from 1 is needed", lambda value: _is_whole(value, 1))
_FLAG: _Check = ("true or false is needed", lambda value: isinstance(value, bool))
_FIELDS: Mapping[str, _Check] = {
    "layer_norm_eps": (
        "a number above 0 and below 1 is needed",
        lambda value: type(value) in (int, float) and 0 < value < 1,
    ),
    "pad_token_id": ("a whole number from 0 is needed", lambda value: _is_whole(value, 0)),
    "has_norm_bias": _FLAG,
    "has_attention_bias": _FLAG,
    "has_ffn_bias": _FLAG,
    "activation": (
        f"one of {', '.join(_ACTIVATIONS)} is needed",
        lambda value: isinstance(value, str) and value in _ACTIVATIONS,
    ),
}


def with_bias(names: Mapping[str, str]) -> dict[str, str]:
    """Names of layers, ours → theirs -> names of their weights and biases."""
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in names.items() for kind in ("weight", "bias")}
