"""An ONNX file, read as data: parsed, whole, its numbers in memory. Needs no torch, and runs nothing.

Whatever is wrong with the file itself is told here; what it may be used for, by who uses it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, inliner

from export.checkpoint import is_lfs_stub
from export.errors import ExportError
from export.external import all_tensors, external_files, load_external
from service.bundle import sha256_file

_STUB_BYTES = 64
_KNOWN_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
# The first version in which weights need not be inputs too.
_IR_VERSION = 4


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """model: without local functions, and without defaults among its inputs. sha256: of every file read, by its name
    beside the graph. warnings: what its user should know.
    """

    model: ModelProto
    sha256: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return int(next(entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")))


def read_onnx(path: Path) -> OnnxFile:
    """Read a file and the numbers that lie beside it. Raises ExportError with every reason why it cannot be read."""
    model = _parse(path)
    if faults := _broken(model):
        raise ExportError(f"{path}: a broken ONNX file", faults)
    sha256 = {path.name: sha256_file(path)} | load_external(model, path)
    if model.functions:
        model = _inlined(model, path)
    return OnnxFile(model, sha256, tuple(_drop_defaults(model)))


def files_beside(path: Path) -> list[str]:
    """The files that a graph needs beside its own, as it names them. Raises ExportError when it cannot be read."""
    return external_files(_parse(path))


def _parse(path: Path) -> ModelProto:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror}") from None
    if is_lfs_stub(content[:_STUB_BYTES]):
        raise ExportError(f"{path}: a Git LFS pointer, not the file: run `git lfs pull`")
    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError):
        raise ExportError(f"{path}: not an ONNX file, or not all of one") from None
    if not model.graph.output:
        raise ExportError(f"{path}: not an ONNX file, or a graph without outputs")
    return model


def _broken(model: ModelProto) -> list[str]:
    """What a file must have before any of it is looked at: operators of a version, names, tensors of a known type."""
    faults = []
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        faults.append("opset_import: the version of ONNX's operators is missing")
    for kind, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        counts = Counter(value.name for value in values)
        faults += [
            f"{kind}: {name or 'one without a name'}: {count} times" for name, count in counts.items() if count > 1
        ]
    for tensor in all_tensors(model):
        if tensor.data_type not in _KNOWN_TYPES:
            faults.append(f"{tensor.name}: type {tensor.data_type} is none of ONNX's")
        elif any(size < 0 for size in tensor.dims):
            faults.append(f"{tensor.name}: sizes {list(tensor.dims)} are not all at least 0")
    return faults


def _inlined(model: ModelProto, path: Path) -> ModelProto:
    """The graph with its local functions put where they are called."""
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ExportError(f"{path}: its local functions cannot be put in place: {reason}") from None


def _drop_defaults(model: ModelProto) -> list[str]:
    """Inputs that have a number of their own are no inputs: what is fixed is told.

    Old files must list their weights there, and newer ones may leave them out: the version goes with it.
    """
    graph = model.graph
    inside = {tensor.name for tensor in graph.initializer}
    dropped = [value.name for value in graph.input if value.name in inside]
    inputs = [value for value in graph.input if value.name not in inside]
    del graph.input[:]
    graph.input.extend(inputs)
    if model.ir_version < _IR_VERSION:
        model.ir_version = _IR_VERSION
        return []
    return [
        f"inputs.{name}: it has a default in the graph, which is served; no request can give another"
        for name in dropped
    ]
