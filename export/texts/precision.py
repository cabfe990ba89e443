"""Weights in the precision of a bundle: what the files hold in another one is made, into `derived.safetensors`.

float32 holds every float16 and bfloat16 exactly. All else is rounded to the nearest number, to the even one of two;
what is too large is refused. In int8 the linear maps of the layers are whole numbers of steps, one step a column.
One tensor at a time is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from export.checkpoint import StoredTensor, read_header
from export.errors import ExportError
from export.texts.graphs.quantised import INT8, LEVELS, STEPS, is_quantised
from service.graph_spec import Precision
from service.manifest import DERIVED

Bytes = NDArray[np.uint8]

# The numbers of weights in memory, by safetensors' name for them.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_MADE = {**DTYPES, "I8": np.dtype(np.int8)}
STORED_AS: Mapping[Precision, str] = {"float32": "F32", "float16": "F16", "int8": "F32"}
_WORDS = {"F32": "float32", "F16": "float16"}
_ALIGNED_TO = 8


def derive(folder: Path, tensors: Mapping[str, StoredTensor], precision: Precision) -> dict[str, StoredTensor]:
    """Make what is not stored in a bundle's precision. -> canonical name → where it lies, in that precision

    tensors: canonical name → where it lies in the folder. What is right where it is stays there; without anything to
    make no file is written. Raises ExportError naming every tensor that does not fit, and why.
    """
    if precision == "int8":
        return _derive_int8(folder, tensors)
    dtype = STORED_AS[precision]
    to_make = {name: tensor for name, tensor in tensors.items() if tensor.dtype != dtype}
    if not to_make:
        return dict(tensors)
    files = _open(folder, to_make)
    made = write_as(folder / DERIVED, to_make, dtype, lambda name: _slice(files, to_make[name]))
    return {name: made.get(name, tensor) for name, tensor in tensors.items()}


def _derive_int8(folder: Path, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """As `derive`; behind the name of a linear map of the layers: whole numbers `[in, out]`, and steps `[out]`."""
    files = _open(folder, tensors)
    maps = {name: tensor for name, tensor in tensors.items() if is_quantised(name)}
    others = {name: tensor for name, tensor in tensors.items() if name not in maps}
    to_make = {name: replace(tensor, dtype="F32") for name, tensor in others.items() if tensor.dtype != "F32"}
    for name, tensor in maps.items():
        to_make[name + INT8] = replace(tensor, dtype="I8", shape=tensor.shape[::-1])
        to_make[name + STEPS] = replace(tensor, dtype="F32", shape=tensor.shape[:1])

    def read(name: str) -> Bytes:
        source = tensors[name.removesuffix(INT8).removesuffix(STEPS)]
        values = _slice(files, source).view(DTYPES[source.dtype]).astype(np.float32)
        if name in tensors:
            return values.view(np.uint8)
        whole, steps = quantise(values.reshape(source.shape))
        return (whole if name.endswith(INT8) else steps).reshape(-1).view(np.uint8)

    return others | write_as(folder / DERIVED, to_make, None, read)


def quantise(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """The weights of a linear map as whole numbers of steps. weights: `[out, in]` -> `[in, out]` int8, `[out]` float32

    The largest of a column is 127 steps; a column of zeros, or of less than any number has a 127th of, has steps of 1.
    """
    steps = np.abs(weights).max(axis=1, initial=0) / np.float32(LEVELS)
    steps = np.where(steps > 0, steps, np.float32(1))
    whole = np.clip(np.rint(weights / steps[:, None]), -LEVELS, LEVELS).astype(np.int8)
    return np.ascontiguousarray(whole.T), steps


def _open(folder: Path, tensors: Mapping[str, StoredTensor]) -> dict[str, Bytes]:
    return {file: np.memmap(folder / file, dtype=np.uint8, mode="r") for file in {t.file for t in tensors.values()}}


def _slice(files: Mapping[str, Bytes], tensor: StoredTensor) -> Bytes:
    return files[tensor.file][tensor.offset : tensor.offset + tensor.num_bytes]


def write_as(
    target: Path, tensors: Mapping[str, StoredTensor], dtype: str | None, read: Callable[[str], Bytes]
) -> dict[str, StoredTensor]:
    """Write tensors into one safetensors file, the same bytes for the same values. -> name → where it lies there

    dtype: what all are made; None = each keeps its own. read: the stored bytes of a tensor, by its name.
    Raises ExportError naming every tensor that does not fit, and why.
    """
    dtypes = {name: dtype or tensor.dtype for name, tensor in tensors.items()}
    # The widest first: all begin where their numbers may.
    names = sorted(tensors, key=lambda name: (-_MADE[dtypes[name]].itemsize, name))
    faults = []
    with target.open("wb") as file:
        file.write(_header({name: replace(tensors[name], dtype=dtypes[name]) for name in names}))
        for name in names:
            content = read(name)
            if dtypes[name] != tensors[name].dtype:
                content, fault = _convert(content.view(DTYPES[tensors[name].dtype]), dtypes[name])
                faults += [f"{name}: {fault}"] if fault else []
            file.write(content.data)
    if faults and dtype:
        raise ExportError(f"the weights do not fit {_WORDS[dtype]}", faults)
    return read_header(target)


def _header(tensors: Mapping[str, StoredTensor]) -> bytes:
    entries, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + prod(tensor.shape) * _MADE[tensor.dtype].itemsize
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    content = json.dumps(entries, separators=(",", ":")).encode()
    content += b" " * (-len(content) % _ALIGNED_TO)
    return len(content).to_bytes(8, "little") + content


def _convert(values: NDArray[Any], dtype: str) -> tuple[Bytes, str]:
    """The bytes of the same numbers, all finite, in another type, and why they do not fit it, if so."""
    with np.errstate(over="ignore"):  # what becomes infinity is looked for
        made = values.astype(DTYPES[dtype])
        if np.isfinite(made).all():
            return made.view(np.uint8), ""
    largest, end = float(np.abs(values).max()), float(np.finfo(DTYPES[dtype]).max)
    return made.view(np.uint8), f"the largest value is {largest:g}, {_WORDS[dtype]} ends at {end:g}"
