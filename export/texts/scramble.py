"""The same graphs over random weights: what a trained net may hide (swapped heads, a dropped bias) random ones show.

Possible without a second export, because the graphs hold only offsets into the weights files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from math import prod, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.checkpoint import StoredTensor
from export.texts.precision import DTYPES, derive
from service.bundle import Bundle
from service.manifest import TextManifest

_SEED = 20
_SPREAD = 0.1


def scramble_bundle(
    bundle: Bundle[TextManifest], tensors: Mapping[str, StoredTensor], target: Path
) -> Bundle[TextManifest]:
    """Copy a bundle's graphs beside weights of the same layout, drawn at random (always the same ones).

    tensors: canonical name → where it lies in the bundle; what is not among them becomes zeros.
    """
    for graph in bundle.manifest.graphs:
        shutil.copyfile(bundle.file(graph.file), target / graph.file)
    for name in sorted({tensor.file for tensor in tensors.values()}):
        _copy_layout(bundle.file(name), target / name)
    _write_values(target, tensors)
    derive(target, tensors, bundle.manifest.precision)
    return Bundle(target, bundle.manifest)


def _copy_layout(source: Path, target: Path) -> None:
    with source.open("rb") as published, target.open("wb") as file:
        length = published.read(8)
        file.write(length + published.read(int.from_bytes(length, "little")))
        file.truncate(source.stat().st_size)


def _write_values(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    rng = np.random.default_rng(_SEED)
    with ExitStack() as stack:
        names = {tensor.file for tensor in tensors.values()}
        files = {name: stack.enter_context((folder / name).open("r+b")) for name in names}
        for name, stored in sorted(tensors.items()):
            files[stored.file].seek(stored.offset)
            files[stored.file].write(_draw(rng, name, stored.shape).astype(DTYPES[stored.dtype]).tobytes())


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = rng.standard_normal(prod(shape), dtype=np.float32).reshape(shape)
    if len(shape) == 2:
        return values * np.float32(1 / sqrt(shape[1]))  # by fan-in: every layer keeps the scale of its input
    return values * np.float32(_SPREAD) + np.float32("norm.weight" in name)
