"""Where a graph's numbers lie: in `weights.safetensors` as the module stores them, in `derived.safetensors` what had to
be made of them, inside the graph what is small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper
from safetensors.numpy import save

from export.checkpoint import StoredTensor, read_header
from service.manifest import DERIVED, WEIGHTS
from service.runners.base import Array

# Shapes and other small integers are read while a graph is loaded, and must lie in it.
_INSIDE_BYTES = 1024
_TYPES = {
    "F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "I64": TensorProto.INT64, "I32": TensorProto.INT32,
    "I8": TensorProto.INT8, "U8": TensorProto.UINT8,
}  # fmt: skip
_STORED = frozenset({*_TYPES.values(), TensorProto.BOOL})


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """A safetensors file, the same bytes for the same tensors, readable by all."""
    path.write_bytes(save({name: np.ascontiguousarray(values) for name, values in sorted(tensors.items())}))


def place_weights(model: ModelProto, folder: Path) -> tuple[str, ...]:
    """Point a graph's initializers at the bundle's files. -> the files that hold them

    `weights.safetensors` must be in the folder: what equals a tensor of it, byte for byte, is read from there. What is
    left and not small goes to `derived.safetensors`, once for each content.
    """
    stored = _by_content(folder / WEIGHTS)
    made: dict[str, tuple[str, NDArray[np.generic]]] = {}
    left: list[tuple[TensorProto, str]] = []
    for tensor in _initializers(model.graph):
        values = numpy_helper.to_array(tensor)
        key = _key(tensor.data_type, values.tobytes())
        is_small = values.nbytes < _INSIDE_BYTES
        if key in stored and not (is_small and (values.ndim == 0 or values.dtype.kind != "f")):
            _point(tensor, stored[key])
        elif not is_small and tensor.data_type in _STORED:
            made.setdefault(key, (tensor.name, values))
            left.append((tensor, key))
    if not made:
        return (WEIGHTS,)
    write_tensors(folder / DERIVED, dict(made.values()))
    places = read_header(folder / DERIVED)
    for tensor, key in left:
        _point(tensor, places[made[key][0]])
    return (WEIGHTS, DERIVED)


def large_tensors(model: ModelProto) -> dict[str, Array]:
    """The initializers that are not small, by name, each content once: the weights of a graph that has no other."""
    found: dict[str, Array] = {}
    seen: set[str] = set()
    for tensor in _initializers(model.graph):
        values = numpy_helper.to_array(tensor)
        if values.nbytes >= _INSIDE_BYTES and tensor.data_type in _STORED:
            key = _key(tensor.data_type, values.tobytes())
            if key not in seen:
                found[tensor.name] = values
            seen.add(key)
    return found


def save_graph(model: ModelProto, path: Path) -> None:
    """Write a graph, the same bytes each time, and check it as a whole.

    Raises onnx's ValidationError or InferenceError.
    """
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path), full_check=True)


def _initializers(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _initializers(inner)


def _by_content(path: Path) -> dict[str, StoredTensor]:
    content = np.memmap(path, dtype=np.uint8, mode="r")
    found: dict[str, StoredTensor] = {}
    for _, stored in sorted(read_header(path).items()):
        if stored.dtype in _TYPES and stored.num_bytes:
            values = content[stored.offset : stored.offset + stored.num_bytes].tobytes()
            found.setdefault(_key(_TYPES[stored.dtype], values), stored)
    return found


def _key(data_type: int, content: bytes) -> str:
    return f"{data_type} {hashlib.sha256(content).hexdigest()}"


def _point(tensor: TensorProto, stored: StoredTensor) -> None:
    name, data_type, dims = tensor.name, tensor.data_type, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", stored.file), ("offset", stored.offset), ("length", stored.num_bytes)):
        tensor.external_data.add(key=key, value=str(value))
