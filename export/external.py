"""The tensors of an ONNX file, wherever they are, and the numbers that lie beside it.

Nothing is opened but what lies beside the file: in its folder, or, as in the hub's cache, where the links lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from export.checkpoint import is_index, is_lfs_stub
from export.errors import ExportError
from service.bundle import sha256_file

_STUB_BYTES = 64
# Two numbers a byte.
_HALF_BYTES = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1})


def load_external(model: ModelProto, path: Path) -> dict[str, str]:
    """Take in the numbers that lie beside the graph. -> SHA-256 of each of their files, by name

    Raises ExportError with every tensor, inside or beside, that is not what it says.
    """
    if faults := _external_faults(model, path):
        raise ExportError(f"{path}: its external data cannot be read", faults)
    names = external_files(model)
    for tensor, place in _external(model):
        with (path.parent / place["location"]).open("rb") as file:
            file.seek(int(place.get("offset", "0")))
            tensor.raw_data = file.read(_num_bytes(tensor))
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    if faults := [fault for tensor in all_tensors(model) for fault in _content_faults(tensor)]:
        raise ExportError(f"{path}: a broken ONNX file", faults)
    return {name: sha256_file(path.parent / name) for name in names}


def external_files(model: ModelProto) -> list[str]:
    """The files that numbers of the graph lie in, as it names them."""
    return sorted({place.get("location", "") for _, place in _external(model)})


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor: initializers, and constants in attributes, inside branches and local functions too."""
    yield from _tensors(model.graph)
    for function in model.functions:
        yield from _constants(function.node)


def _content_faults(tensor: TensorProto) -> Iterator[str]:
    try:
        numpy_helper.to_array(tensor)
    except Exception as error:
        yield f"{tensor.name}: its content is not of sizes {list(tensor.dims)}: {' '.join(str(error).split())[:200]}"


def _external(model: ModelProto) -> Iterator[tuple[TensorProto, dict[str, str]]]:
    """Every tensor that lies outside the graph, and where."""
    for tensor in all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor, {entry.key: entry.value for entry in tensor.external_data}


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _constants(graph.node)


def _constants(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(inner)


def _external_faults(model: ModelProto, path: Path) -> list[str]:
    """A file that cannot be read is told once, with the first tensor that lies in it."""
    faults: list[str] = []
    unreadable: set[str] = set()
    for tensor, place in _external(model):
        location = place.get("location", "")
        where = f"{tensor.name}: {location or 'no file'}"
        if location in unreadable:
            continue
        if fault := _place_fault(location, path):
            unreadable.add(location)
            faults.append(f"{where}: {fault}")
        else:
            size = (path.parent / location).stat().st_size
            faults += [f"{where}: {found}" for found in _size_faults(tensor, place, size)]
    return faults


def _place_fault(location: str, path: Path) -> str:
    parts = PurePosixPath(location).parts
    if not parts or PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or ".." in parts:
        return "a file beside the graph is needed, no absolute path and no .."
    if not _is_beside(path.parent / location, path):
        return "no such file beside the graph"
    return "a Git LFS pointer, not the file: run `git lfs pull`" if _is_stub(path.parent / location) else ""


def _is_beside(file: Path, path: Path) -> bool:
    folders = (path.parent.resolve(), path.resolve().parent)
    return file.is_file() and any(file.resolve().is_relative_to(folder) for folder in folders)


def _is_stub(file: Path) -> bool:
    with file.open("rb") as content:
        return is_lfs_stub(content.read(_STUB_BYTES))


def _size_faults(tensor: TensorProto, place: Mapping[str, str], size: int) -> Iterator[str]:
    needed = _num_bytes(tensor)
    offset, length = place.get("offset", "0"), place.get("length", str(needed))
    if not (is_index(offset) and is_index(length)):
        yield f"offset {offset!r} and length {length!r} must be numbers of bytes"
    elif int(length) != needed or int(offset) + needed > size:
        yield f"{needed} bytes needed, {length} at {offset} given, the file has {size}"


def _num_bytes(tensor: TensorProto) -> int:
    if tensor.data_type in _HALF_BYTES:
        return int(prod(tensor.dims) + 1) // 2
    return int(prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
