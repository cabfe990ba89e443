"""Presets: every mechanism of the family under a name, small enough to look at, random until it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from models.attention import SingleHeadAttention

_SEED = 0


@dataclass(frozen=True, slots=True)
class Preset:
    """One mechanism. summary: what it is, in a line; kwargs: the arguments of its class."""

    name: str
    summary: str
    module: type[nn.Module]
    kwargs: Mapping[str, Any]


_ALL = (
    Preset(
        "single-head",
        "Scaled dot-product self-attention with one head, as the worked case has it: 512 → 64",
        SingleHeadAttention,
        {"d_model": 512, "d_k": 64},
    ),
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}


def build_preset(name: str) -> nn.Module:
    """The module of a preset with its own random weights, always the same ones, in eval mode.

    Raises ValueError for an unknown name.
    """
    if name not in PRESETS:
        raise ValueError(f"preset: {', '.join(PRESETS)} are known, got {name!r}")
    preset = PRESETS[name]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(_SEED)
        return preset.module(**preset.kwargs).eval().requires_grad_(False)


def load_preset(name: str, weights: Path) -> nn.Module:
    """The module of a preset with the weights of a safetensors file.

    Raises ValueError for an unknown name, and when the file is not exactly of this module.
    """
    module = build_preset(name)
    try:
        module.load_state_dict(load_file(weights), strict=True)
    except RuntimeError as error:
        raise ValueError(f"{weights.name}: not of preset {name}: {error}") from None
    return module
