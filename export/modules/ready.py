"""A ready ONNX file: read as data, checked, and given a signature. Needs no torch.

Nothing outside its folder is opened, and nothing is believed that the graph does not say: what cannot be read from it
must come in a signature file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from export.errors import ExportError
from export.modules.contract import DTYPES, all_nodes, axes_of, dtype_of, interface_faults, operator_faults
from export.modules.declaration import read_declaration, read_toml
from export.modules.signature import Signature
from export.onnx_file import read_onnx
from service.bundle import sha256_file

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLOATS = ("float32", "float16")
_ASK = "give --signature FILE"


@dataclass(frozen=True, slots=True)
class Ready:
    """A graph with its numbers in memory, and what it takes and gives. sha256: of every file read, by name."""

    graph: ModelProto
    signature: Signature
    opset: int
    sha256: Mapping[str, str]
    warnings: tuple[str, ...]


def open_ready(path: Path, signature_file: Path | None) -> Ready:
    """Read a file. Raises ExportError with every reason why it is not taken."""
    file = read_onnx(path)
    model, sha256 = file.model, dict(file.sha256)
    faults = [*operator_faults(model), *_tensor_faults(model)]
    warnings: list[str] = []
    if signature_file is not None:
        sha256[signature_file.name] = sha256_file(signature_file)
        signature = read_declaration(read_toml(signature_file), str(signature_file))
        faults += _name_faults(model, signature)
    else:
        declaration, unclear = _declare(model, warnings)
        faults += unclear
        signature = read_declaration(declaration, str(path)) if not unclear else Signature((), (), {})
    if not faults:
        _order(model, signature)
        faults += interface_faults(model, signature)
    if faults:
        raise ExportError(f"{path}: cannot be served as it is", list(dict.fromkeys(faults)))
    return Ready(model, signature, file.opset, sha256, tuple(warnings))


def _tensor_faults(model: ModelProto) -> list[str]:
    served = set(DTYPES.values())
    faults = [
        f"{tensor.name}: weights in {TensorProto.DataType.Name(tensor.data_type).lower()}: "
        f"{', '.join(DTYPES)} are served"
        for tensor in model.graph.initializer
        if tensor.data_type not in served and prod(tensor.dims) > 1
    ]
    faults += [f"{tensor.values.name}: a sparse tensor" for tensor in model.graph.sparse_initializer]
    return faults


def _name_faults(model: ModelProto, signature: Signature) -> list[str]:
    faults = []
    for kind, specs, values in (
        ("inputs", signature.inputs, model.graph.input),
        ("outputs", signature.outputs, model.graph.output),
    ):
        declared, there = {spec.name for spec in specs}, [value.name for value in values]
        faults += [
            f"{kind}.{name}: not in the graph, which has {', '.join(there)}" for name in sorted(declared - set(there))
        ]
        faults += [f"{kind}: {name} is in the graph and not declared" for name in there if name not in declared]
    return faults


def _order(model: ModelProto, signature: Signature) -> None:
    for specs, values in ((signature.inputs, model.graph.input), (signature.outputs, model.graph.output)):
        by_name = {value.name: ValueInfoProto.FromString(value.SerializeToString()) for value in values}
        del values[:]
        values.extend(by_name[spec.name] for spec in specs)


def _declare(model: ModelProto, warnings: list[str]) -> tuple[dict[str, Any], list[str]]:
    """What a graph says of itself, and all that it leaves open."""
    graph, faults = model.graph, []
    batch = _batch_symbol(graph)
    inputs: dict[str, dict[str, object]] = {}
    axes = {value.name: _named_axes(value, batch) for value in (*graph.input, *graph.output)}
    for value in graph.input:
        own = axes[value.name]
        others = {axis for other in graph.input if other.name != value.name for axis in axes[other.name]}
        meaning, unclear = _meaning(value, own, others, graph)
        faults += _axis_faults(f"inputs.{value.name}", own) + unclear
        inputs[value.name] = {"axes": own, "dtype": dtype_of(value)} | meaning
        if meaning.get("meaning") == "mask":
            warnings.append(f"inputs.{value.name}: read as a mask, 1 = attend; --signature says otherwise")
    known = {axis for name in inputs for axis in axes[name]}
    for value in graph.output:
        faults += _axis_faults(f"outputs.{value.name}", axes[value.name])
        faults += [
            f"outputs.{value.name}: axis {axis} is no input's: {_ASK}"
            for axis in axes[value.name]
            if isinstance(axis, str) and axis and axis not in known
        ]
    outputs = {value.name: {"axes": axes[value.name], "dtype": dtype_of(value)} for value in graph.output}
    return {"inputs": inputs, "outputs": outputs}, faults


def _batch_symbol(graph: GraphProto) -> str:
    """The symbol of the first axis of the first input."""
    axes = axes_of(graph.input[0]) if graph.input else None
    return str(axes[0]) if axes and isinstance(axes[0], str) else ""


def _named_axes(value: ValueInfoProto, batch: str) -> list[str | int]:
    return ["batch" if axis == batch and batch else axis for axis in axes_of(value) or []]


def _axis_faults(where: str, axes: Sequence[str | int]) -> list[str]:
    if not axes:
        return [f"{where}: no axes are given: {_ASK}"]
    faults = []
    if axes[0] != "batch":
        faults.append(
            f"{where}: the first axis is {axes[0] or 'without a name'}, not the batch of the first input: {_ASK}"
        )
    faults += [
        f"{where}: axis {place} is {axis!r}, no word: {_ASK}"
        for place, axis in enumerate(axes)
        if isinstance(axis, str) and not _WORD.fullmatch(axis) and place
    ]
    return faults


def _meaning(
    value: ValueInfoProto, axes: Sequence[str | int], others: set[str | int], graph: GraphProto
) -> tuple[dict[str, object], list[str]]:
    """Floats are features. Whole numbers are a mask when called so, and ids when they only choose rows of a table."""
    dtype, where = dtype_of(value), f"inputs.{value.name}"
    is_paired = len(axes) == 2 and isinstance(axes[1], str) and axes[1] in others
    if is_paired and dtype in ("bool", "int64", "int32") and (dtype == "bool" or "mask" in value.name.lower()):
        return {"meaning": "mask"}, []
    if dtype in _FLOATS:
        return {}, []
    if dtype in ("int64", "int32") and (rows := table_rows(value.name, graph)) is not None:
        return {"meaning": "token_ids", "below": rows}, []
    return {}, [f"{where}: what its {dtype} values mean cannot be read from the graph: {_ASK}"]


def table_rows(name: str, graph: GraphProto) -> int | None:
    """The rows of the smallest table that an input chooses from; None when it is used in any other way."""
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    names, rows = {name}, []
    for node in all_nodes(graph):
        if node.op_type == "Cast" and node.input[0] in names:
            names.add(node.output[0])
        elif node.op_type == "Gather" and node.input[1] in names and node.input[0] in sizes:
            rows.append(int(sizes[node.input[0]]))
        elif node.op_type != "Shape" and names & set(node.input):
            return None
    return min(rows, default=None)
