"""A model's weights in a bundle: `weights.safetensors` is the published file itself, where there is such a file.

What comes in several files, or as a pickle, or with more that nothing uses than is used, is merged: the tensors that
are used, by their published names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from export.checkpoint import StoredTensor
from export.errors import ExportError
from export.texts.precision import DTYPES, write_as
from export.texts.read.model import Model
from export.texts.read.weights import Read
from service.bundle import sha256_file
from service.graph_spec import Precision
from service.manifest import WEIGHTS

# Of the bytes of a published file, to be worth a copy of it.
_LEAST_USED = 0.5


def place_weights(model: Model, folder: Path, precision: Precision) -> dict[str, StoredTensor]:
    """Write `weights.safetensors` into a folder. -> canonical name → where it lies there

    A merged file is float32 where the bundle is; else every tensor keeps the type it is published in.
    Raises ExportError for what is no finite number or does not fit float32, and when a file changed since it was read.
    """
    published = {name: model.weights.tensors[name] for name in model.checkpoint.names.values()}
    _check_finite(model, published)
    if model.weights.is_one_safetensors and _used(published, model.weights.tensors) >= _LEAST_USED:
        shutil.copyfile(model.path / model.weights.file, folder / WEIGHTS)
        _check(model, {model.weights.file: folder / WEIGHTS})
        return {name: replace(tensor, file=WEIGHTS) for name, tensor in model.checkpoint.tensors.items()}
    dtype = "F32" if precision == "float32" else None
    merged = write_as(folder / WEIGHTS, published, dtype, model.weights.read)
    _check(model, {file: model.path / file for file in model.weights.sha256})
    return {
        name: _moved(tensor, published[model.checkpoint.names[name]], merged[model.checkpoint.names[name]])
        for name, tensor in model.checkpoint.tensors.items()
    }


def _check_finite(model: Model, published: Mapping[str, StoredTensor]) -> None:
    faults = list(_not_finite(published, model.weights.read))
    if model.dense is not None:
        faults += _not_finite(model.dense.tensors, model.dense.read)
    if faults:
        raise ExportError(f"{model.path}: weights that are no finite numbers", faults)


def _not_finite(tensors: Mapping[str, StoredTensor], read: Read) -> Iterator[str]:
    for name, tensor in tensors.items():
        values = read(name).view(DTYPES[tensor.dtype])
        if not np.isfinite(values).all():
            yield f"{tensor.file}: {name}: holds {'NaN' if np.isnan(values).any() else 'an infinite number'}"


def _used(used: Mapping[str, StoredTensor], stored: Mapping[str, StoredTensor]) -> float:
    return sum(tensor.num_bytes for tensor in used.values()) / sum(tensor.num_bytes for tensor in stored.values())


def _check(model: Model, copies: Mapping[str, Path]) -> None:
    for file, path in copies.items():
        if sha256_file(path) != model.weights.sha256[file]:
            raise ExportError(f"{model.path / file}: changed while it was read")


def _moved(tensor: StoredTensor, published: StoredTensor, merged: StoredTensor) -> StoredTensor:
    """The same part of a tensor in another file, where its numbers may be of another width."""
    offset = merged.offset + (tensor.offset - published.offset) * merged.num_bytes // published.num_bytes
    num_bytes = tensor.num_bytes * merged.num_bytes // published.num_bytes
    return replace(merged, shape=tensor.shape, offset=offset, num_bytes=num_bytes)
