"""Draw the attention weights of every preset that has some into docs/figures/weights.

    python -m tools.draw_weights [OUT]

Weights are random, so what shows is the mechanism: what a query may see, how sharply, and what a mask takes away.
Inputs are slow random walks, so that neighbours are alike; the last positions of each row are masked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from models.registry import PRESETS, build_preset
from models.signature import Declaration
from models.weighting import masks_of_keys
from tools.layouts import expand_weights

SIZES = {"query_seq": 18, "key_seq": 24, "seq": 24, "num_global": 2}
LOCAL_SEQ = 96  # some windows of 16 long
NUM_MASKED = 4
DPI = 110


def main(out: Path = Path("docs/figures/weights")) -> None:
    """Draw every picture."""
    out.mkdir(parents=True, exist_ok=True)
    for name in PRESETS:
        if (weights := weights_of(name)) is not None:
            draw(name, weights, out / f"{name}.png")


def weights_of(name: str) -> Tensor | None:
    """The weights of a preset's first layer for one seeded row, `[queries, keys]` of head 0; None when it has none."""
    module: Any = build_preset(name)
    declaration: Declaration = module.signature()
    outputs = declaration["outputs"]
    if not any(spec.get("meaning") == "attention" for spec in outputs.values()):
        return None
    inputs = make_inputs(declaration)
    with torch.inference_mode(), masks_of_keys():
        found = dict(zip(outputs, module(**inputs), strict=True))
    is_local = any("layout" in spec for spec in outputs.values())
    first = min(spec.get("layer", 0) for spec in outputs.values() if spec.get("meaning") == "attention")
    if is_local:
        return expand_weights(outputs, found | inputs, layer=first)[0, 0]
    weights: Tensor = next(found[key] for key, spec in outputs.items() if spec.get("meaning") == "attention")[0]
    return weights[0] if weights.dim() == 3 else weights


def make_inputs(declaration: Declaration) -> dict[str, Tensor]:
    """Seeded inputs of one row, by what the signature says that they mean."""
    generator = torch.Generator().manual_seed(3)
    is_local = any("layout" in spec for spec in declaration["outputs"].values())
    sizes = SIZES | ({"seq": LOCAL_SEQ} if is_local else {})
    return {name: _values(spec, sizes, generator) for name, spec in declaration["inputs"].items()}


def _values(spec: Mapping[str, Any], sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    shape = [1, *(axis if isinstance(axis, int) else sizes[axis] for axis in spec["axes"][1:])]
    meaning = spec.get("meaning", "features")
    if meaning == "mask":
        mask = torch.ones(shape, dtype=torch.bool)
        mask[..., -NUM_MASKED:] = False
        return mask
    if meaning == "index":
        return torch.tensor([[0, sizes["seq"] // 2]])
    if meaning == "token_ids":
        return torch.randint(0, spec["below"], shape, generator=generator)
    walk = torch.randn(shape, generator=generator).cumsum(dim=1)
    walk -= walk.mean(dim=1, keepdim=True)
    return walk / walk.std()


def draw(name: str, weights: Tensor, file: Path) -> None:
    """One heat map, queries downwards, keys to the right."""
    queries, keys = weights.shape
    figure = Figure(figsize=(3.6, 3.0 * max(0.35, queries / keys)), layout="constrained")
    axes = figure.subplots()
    shown = weights.detach().double().numpy()
    image = axes.imshow(shown, cmap="viridis", vmin=0, aspect="auto" if queries == 1 else "equal")
    figure.colorbar(image, ax=axes, shrink=0.9, label="weight")
    axes.set(title=name, xlabel="key", ylabel="query")
    axes.set_yticks([0] if queries == 1 else range(0, queries, 24 if queries > 48 else 6))
    axes.set_xticks(range(0, keys, 24 if keys > 48 else 6))
    figure.savefig(file, dpi=DPI, metadata={"Software": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
