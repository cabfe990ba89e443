"""The Dense modules of a pipeline: their shapes, and where their weights lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from export.checkpoint import FLOATS, StoredTensor
from export.texts.precision import Bytes, write_as
from export.texts.read.source import SourceDirectory
from export.texts.read.weights import Read, Weights, read_weights
from models.head_config import DenseConfig, HeadActivation
from service.manifest import DENSE_WEIGHTS

_TORCH = "torch.nn."
_ACTIVATIONS: Mapping[str, HeadActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
# What sentence-transformers takes where the file says nothing.
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"
_KEYS = (
    "in_features",
    "out_features",
    "bias",
    "activation_function",
    "use_residual",
    "module_input_name",
    "module_output_name",
)
_OWN = "linear.weight"
_NAMES = {"weight": _OWN, "bias": "linear.bias", "residual.weight": "residual.weight"}


@dataclass(frozen=True, slots=True)
class DenseModules:
    """Dense modules in their order.

    tensors: canonical name → where it lies in the model directory. read: the bytes of a tensor, by its canonical name.
    published: what of it lies among the encoder's own weights, by its name there.
    """

    configs: tuple[DenseConfig, ...]
    tensors: Mapping[str, StoredTensor]
    read: Read
    published: frozenset[str] = frozenset()

    def sha256(self) -> str:
        """Over every weight, in the order of their names."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            digest.update(f"{name} {self.tensors[name].dtype} {self.tensors[name].shape} ".encode())
            digest.update(self.read(name).data)
        return digest.hexdigest()


def read_dense(source: SourceDirectory, folders: Sequence[str], dim: int) -> DenseModules | None:
    """Every Dense module, one after the other. dim: of what goes into the first.

    None and faults when one is missing, broken or not supported.
    """
    configs: list[DenseConfig] = []
    tensors: dict[str, StoredTensor] = {}
    reads: dict[str, Callable[[], Bytes]] = {}
    for index, folder in enumerate(folders):
        config, weights = _read_config(source, folder, dim), read_weights(source, folder)
        if config is None or weights is None:
            return None
        found = _match(source, weights, config, index)
        tensors |= {ours: weights.tensors[theirs] for ours, theirs in found.items()}
        reads |= {ours: partial(weights.read, theirs) for ours, theirs in found.items()}
        configs.append(config)
        dim = config.output_dim
    return DenseModules(tuple(configs), tensors, lambda name: reads[name]())


def find_projection(source: SourceDirectory, weights: Weights, dim: int) -> DenseModules | None:
    """The projection that lies among the weights of an encoder, as Stanford's ColBERT has it. None and a fault without.

    dim: of the encoder
    """
    stored, name = weights.tensors.get(_OWN), "dense.0.weight"
    if stored is None:
        source.faults.append(f"{weights.file}: {_OWN} ({name}): missing, as are Dense modules in modules.json")
        return None
    if len(stored.shape) != 2 or stored.shape[1] != dim or stored.dtype not in FLOATS:
        shape = f"{stored.dtype} {list(stored.shape)}"
        source.faults.append(f"{stored.file}: {_OWN}: numbers of the shape [any, {dim}] are needed, got {shape}")
        return None
    config = DenseConfig(dim, stored.shape[0], "identity", has_bias=False)
    return DenseModules((config,), {name: stored}, lambda _: weights.read(_OWN), frozenset({_OWN}))


def write_dense(modules: DenseModules, folder: Path) -> dict[str, StoredTensor]:
    """Write `dense.safetensors`, float32. -> canonical name → where it lies there; nothing is written for no modules"""
    return write_as(folder / DENSE_WEIGHTS, modules.tensors, "F32", modules.read) if modules.configs else {}


def _match(source: SourceDirectory, weights: Weights, config: DenseConfig, index: int) -> dict[str, str]:
    """Canonical name → published name."""
    found, prefix = {}, f"dense.{index}."
    for ours, shape in config.parameter_shapes(index).items():
        theirs = _NAMES[ours.removeprefix(prefix)]
        stored = weights.tensors.get(theirs)
        if stored is None:
            source.faults.append(f"{weights.file}: {theirs} ({ours}): missing")
        elif stored.shape != shape or stored.dtype not in FLOATS:
            got = f"{stored.dtype} {list(stored.shape)}"
            source.faults.append(f"{weights.file}: {theirs}: numbers of the shape {list(shape)} are needed, got {got}")
        else:
            found[ours] = theirs
    return found


def _read_config(source: SourceDirectory, folder: str, dim: int) -> DenseConfig | None:
    file, num_faults = f"{folder}config.json", len(source.faults)
    config = source.read_object(file, is_required=True)
    if unknown := {key: value for key, value in config.items() if key not in _KEYS}:
        source.refuse(file, ", ".join(unknown), unknown, f"only {', '.join(_KEYS)} are known")
    if config and config.get("in_features") != dim:
        source.refuse(file, "in_features", config.get("in_features"), f"{dim} is needed, the width of what goes in")
    if config and (type(config.get("out_features")) is not int or config["out_features"] < 1):
        source.refuse(file, "out_features", config.get("out_features"), "a whole number from 1 is needed")
    for key in ("bias", "use_residual"):
        if not isinstance(config.get(key, True), bool):
            source.refuse(file, key, config[key], "true or false is needed")
    activation = _read_activation(source, file, config)
    if len(source.faults) > num_faults or activation is None:
        return None
    has_bias, has_residual = config.get("bias", True), config.get("use_residual", False)
    return DenseConfig(dim, config["out_features"], activation, has_bias, has_residual)


def _read_activation(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> HeadActivation | None:
    value = config.get("activation_function", _DEFAULT_ACTIVATION)
    name = value.rpartition(".")[2] if isinstance(value, str) and value.startswith(_TORCH) else ""
    if name not in _ACTIVATIONS:
        source.refuse(file, "activation_function", value, f"{', '.join(_ACTIVATIONS)} of {_TORCH}modules is needed")
        return None
    return _ACTIVATIONS[name]
