"""A published weights file → an encoder and what stands on it, exactly or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from models.config import EncoderConfig
from models.encoder import Encoder
from models.families.family import ALL_ROWS, Rows, find_any, find_name
from models.families.known import FAMILIES
from models.head_config import DenseConfig, HeadConfig
from models.heads import Dense, Head

# Canonical name → what a checkpoint calls it.
_Names = Mapping[str, str]
_WORDS = "embeddings.word.weight"
_HEAD, _DENSE = "head.", "dense."


def load_encoder(config: EncoderConfig, weights: Path) -> Encoder:
    """The encoder of a safetensors file, in float32 and in eval mode.

    Raises ValueError listing every missing tensor and every wrong shape at once; other tensors are ignored.
    """
    # Not on the meta device: that imports torch's compiler, which takes longer than the random values it saves.
    encoder = Encoder(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    rows = FAMILIES[config.family].rows
    tensors = _read(weights, lambda present: _names(config, present), shapes, rows)
    encoder.load_state_dict(tensors, strict=True, assign=True)
    return encoder.eval().requires_grad_(False)


def load_head(encoder: EncoderConfig, config: HeadConfig, weights: Path) -> Head:
    """The head of a safetensors file, as `load_encoder` does. Raises the same."""
    head = Head(encoder, config)
    shapes = {_HEAD + name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    tensors = _read(weights, lambda present: _head_names(encoder, config, present), shapes)
    head.load_state_dict({name.removeprefix(_HEAD): tensor for name, tensor in tensors.items()}, assign=True)
    return head.eval().requires_grad_(False)


def load_dense(configs: Sequence[DenseConfig], weights: Path) -> nn.Sequential:
    """Dense modules of a file that has them under their canonical names, as `load_encoder` does. Raises the same."""
    modules = nn.Sequential(*map(Dense, configs))
    shapes = {_DENSE + name: tuple(tensor.shape) for name, tensor in modules.state_dict().items()}
    tensors = _read(weights, lambda present: {name: name for name in shapes}, shapes)
    modules.load_state_dict({name.removeprefix(_DENSE): tensor for name, tensor in tensors.items()}, assign=True)
    return modules.eval().requires_grad_(False)


def _read(
    weights: Path,
    find_names: Callable[[frozenset[str]], _Names],
    shapes: Mapping[str, tuple[int, ...]],
    find_rows: Callable[[str], Rows] = lambda _: ALL_ROWS,
) -> dict[str, Tensor]:
    tensors, faults = {}, []
    with safe_open(weights, framework="pt") as file:
        present = frozenset(file.keys())
        for ours, theirs in find_names(present).items():
            rows, whole = find_rows(ours), find_rows(ours).whole(shapes[ours])
            if theirs not in present:
                faults.append(f"{theirs}: missing")
            elif (found := tuple(file.get_slice(theirs).get_shape())) != whole:
                faults.append(f"{theirs}: shape {whole} needed, got {found}")
            else:
                tensors[ours] = file.get_slice(theirs)[rows.bounds(shapes[ours])].to(torch.float32)
    if faults:
        raise ValueError(f"{weights.name}: " + "; ".join(faults))
    return tensors


def _names(config: EncoderConfig, present: frozenset[str]) -> _Names:
    family = FAMILIES[config.family]
    prefix = family.find_prefix(present)
    names = {ours: prefix + theirs for ours, theirs in family.parameters(config).items()}
    return {ours: find_name(name, present) or name for ours, name in names.items()}


def _head_names(encoder: EncoderConfig, config: HeadConfig, present: frozenset[str]) -> _Names:
    family = FAMILIES[encoder.family]
    prefix = family.find_prefix(present)
    names = {}
    for ours, candidates in family.heads[config.name].parameters(config, prefix).items():
        names[ours] = find_any(candidates, present) or candidates[0]
    return names | ({"head.output.weight": _names(encoder, present)[_WORDS]} if config.is_tied else {})
