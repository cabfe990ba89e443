"""A published weights file → an encoder, exactly or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from models.config import EncoderConfig
from models.encoder import Encoder
from models.families.family import find_name
from models.families.known import FAMILIES


def load_encoder(config: EncoderConfig, weights: Path) -> Encoder:
    """The encoder of a safetensors file, in float32 and in eval mode.

    Raises ValueError listing every missing tensor and every wrong shape at once; other tensors are ignored.
    """
    # Not on the meta device: that imports torch's compiler, which takes longer than the random values it saves.
    encoder = Encoder(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    encoder.load_state_dict(_read(config, weights, shapes), strict=True, assign=True)
    return encoder.eval().requires_grad_(False)


def _read(config: EncoderConfig, weights: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    tensors, faults = {}, []
    with safe_open(weights, framework="pt") as file:
        present = frozenset(file.keys())
        for ours, theirs in _names(config, present).items():
            if theirs not in present:
                faults.append(f"{theirs}: missing")
            elif (found := tuple(file.get_slice(theirs).get_shape())) != shapes[ours]:
                faults.append(f"{theirs}: shape {shapes[ours]} needed, got {found}")
            else:
                tensors[ours] = file.get_tensor(theirs).to(torch.float32)
    if faults:
        raise ValueError(f"{weights.name}: " + "; ".join(faults))
    return tensors


def _names(config: EncoderConfig, present: frozenset[str]) -> dict[str, str]:
    family = FAMILIES[config.family]
    prefix = family.find_prefix(present)
    names = {ours: prefix + theirs for ours, theirs in family.parameters(config).items()}
    return {ours: find_name(name, present) or name for ours, name in names.items()}
