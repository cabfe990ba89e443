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
# What exporters call the axis of the rows.
_BATCH_WORDS = frozenset({"batch", "batch_size", "batchsize", "n", "b", "bs"})


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
    model, sha256, warnings = file.model, dict(file.sha256), list(file.warnings)
    faults = [*operator_faults(model), *_tensor_faults(model)]
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
    faults += _first_axis_faults(graph, axes)
    for value in graph.input:
        own = axes[value.name]
        others = {axis for other in graph.input if other.name != value.name for axis in axes[other.name]}
        meaning, unclear = _meaning(value, own, others, graph)
        faults += _value_faults(f"inputs.{value.name}", value, own) or unclear
        inputs[value.name] = {"axes": own, "dtype": dtype_of(value)} | meaning
        if meaning.get("meaning") == "mask":
            warnings.append(f"inputs.{value.name}: read as a mask, 1 = attend; --signature says otherwise")
        elif not meaning and not unclear and "mask" in value.name.lower():
            warnings.append(f"inputs.{value.name}: read as features, no mask of floats is guessed; --signature says it")
    known = {axis for name in inputs for axis in axes[name]}
    for value in graph.output:
        where = f"outputs.{value.name}"
        faults += _value_faults(where, value, axes[value.name]) or [
            f"{where}: axis {axis} is no input's: {_ASK}"
            for axis in axes[value.name]
            if isinstance(axis, str) and axis and axis not in known
        ]
        if value.name in inputs:
            faults.append(f"{where}: an input that is given back as it is: leave that output out of the graph")
    outputs = {value.name: {"axes": axes[value.name], "dtype": dtype_of(value)} for value in graph.output}
    return {"inputs": inputs, "outputs": outputs}, faults


def _batch_symbol(graph: GraphProto) -> str:
    """The symbol of the first axis of the first input."""
    axes = axes_of(graph.input[0]) if graph.input else None
    return str(axes[0]) if axes and isinstance(axes[0], str) else ""


def _named_axes(value: ValueInfoProto, batch: str) -> list[str | int]:
    return ["batch" if axis == batch and batch else axis for axis in axes_of(value) or []]


def _first_axis_faults(graph: GraphProto, axes: Mapping[str, Sequence[str | int]]) -> list[str]:
    """An axis that is called as the batch is, and is not the first: what is it then?"""
    symbols = {value.name: axes_of(value) or [] for value in graph.input}
    has_batch = any(str(own[0]).lower() in _BATCH_WORDS for own in symbols.values() if own)
    faults = []
    for name, own in symbols.items():
        for place, axis in enumerate(own):
            is_named = isinstance(axis, str) and axis.lower() in _BATCH_WORDS
            if place and (axes[name][place] == "batch" or (is_named and not has_batch)):
                faults.append(
                    f"inputs.{name}: axis {place} is called {axis}, and rows are the first axis, here {own[0]}: "
                    f"put the batch first (Transpose), or {_ASK} if it is"
                )
    return faults


def _value_faults(where: str, value: ValueInfoProto, axes: Sequence[str | int]) -> list[str]:
    if not value.type.HasField("tensor_type"):
        return [f"{where}: {str(value.type.WhichOneof('value')).removesuffix('_type')}, only tensors are served"]
    if (dtype := dtype_of(value)) not in DTYPES:
        return [f"{where}: {dtype}: {', '.join(DTYPES)} are served: put a Cast into the graph"]
    return _axis_faults(where, value, axes)


def _axis_faults(where: str, value: ValueInfoProto, axes: Sequence[str | int]) -> list[str]:
    if axes_of(value) is None:
        return [f"{where}: no axes are given: {_ASK}"]
    if not axes:
        return [f"{where}: a single number for all rows: each row needs its own, with the batch as the first axis"]
    faults = []
    if isinstance(axes[0], int):
        faults.append(
            f"{where}: the first axis is the batch, and the graph fixes it to {axes[0]}: export it with a word there, "
            "so that it takes any number of rows"
        )
    elif axes[0] != "batch":
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
    """The rows of the smallest table that an input chooses from; None when it is used in any other way.

    They are along the axis of the choice: a table may lie across.
    """
    sizes = {tensor.name: tensor.dims for tensor in graph.initializer if tensor.dims}
    names, rows = {name}, []
    for node in all_nodes(graph):
        if node.op_type == "Cast" and node.input[0] in names:
            names.add(node.output[0])
        elif node.op_type == "Gather" and node.input[1] in names and node.input[0] in sizes:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            rows.append(int(sizes[node.input[0]][axis]))
        elif node.op_type != "Shape" and names & set(node.input):
            return None
    return min(rows, default=None)
