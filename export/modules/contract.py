"""A graph held to its signature: what it must not contain, and the names, axes and types that it gets.

For graphs of PyTorch's exporter and ready ones alike. Knows ONNX, no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from export.modules.signature import Signature
from service.graph_spec import TensorSpec

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_STANDARD = ("", "ai.onnx")
_MAX_NAMED = 5
_STACK_TRACE = "pkg.torch.onnx.stack_trace"
DTYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
}


def operator_faults(model: ModelProto, domains: Collection[str] = ()) -> list[str]:
    """Operators that no bundle may have: random ones, dropout as in training, and those of other domains.

    domains: that are served beside ONNX's own.
    """
    faults = []
    random = Counter(_told(node) for node in all_nodes(model.graph) if _is_random(node, model.graph))
    faults += [
        f"random: {name}{_times(count)}: the same input must give the same output" for name, count in random.items()
    ]
    local = {(function.domain, function.name) for function in model.functions}
    foreign = Counter(
        f"{node.domain}.{node.op_type}"
        for node in all_nodes(model.graph)
        if node.domain not in (*_STANDARD, *domains) and (node.domain, node.op_type) not in local
    )
    served = " and those of ".join(["ONNX's own", *domains])
    faults += [f"operator {name}{_times(count)}: only {served} are served" for name, count in foreign.items()]
    return faults


def interface_faults(model: ModelProto, signature: Signature) -> list[str]:
    """Where a graph's inputs and outputs, in order, are not what the signature says; and inputs that nothing uses."""
    graph, faults = model.graph, []
    used = {name for node in all_nodes(graph) for name in node.input} | {value.name for value in graph.output}
    for spec, value in zip(signature.inputs, graph.input, strict=True):
        where = f"inputs.{spec.name}"
        if value.name not in used:
            faults.append(f"{where}: the graph does not use it: no output depends on its values")
        faults += _value_faults(where, spec, value)
    for spec, value in zip(signature.outputs, graph.output, strict=True):
        faults += _output_faults(f"outputs.{spec.name}", spec, value)
    return faults


def dress(model: ModelProto, signature: Signature, *, free: Collection[str] = ()) -> None:
    """Give inputs, outputs and axes the declared names, and leave out all that tells where the graph was made.

    free: further names that nothing inside may have.
    """
    graph = model.graph
    strip(model)
    wanted = [spec.name for spec in (*signature.inputs, *signature.outputs)]
    _part_outputs(graph)
    renamed = dict(zip((value.name for value in (*graph.input, *graph.output)), wanted, strict=True))
    _rename(graph, renamed | _moved(graph, (*wanted, *free), renamed))
    for value, spec in zip((*graph.input, *graph.output), (*signature.inputs, *signature.outputs), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(spec.name, DTYPES[spec.dtype], list(spec.axes)))
    graph.name = "encode"


def strip(model: ModelProto) -> None:
    """Drop texts for people and tools (paths of local files among them), and shapes that were only inferred."""
    del model.metadata_props[:]
    model.doc_string = ""
    for graph in _graphs(model.graph):
        del graph.value_info[:]
        del graph.metadata_props[:]
        del graph.quantization_annotation[:]
        graph.doc_string = ""
        for part in (*graph.node, *graph.initializer, *graph.input, *graph.output):
            part.doc_string = ""
            del part.metadata_props[:]
        for node in graph.node:
            for attribute in node.attribute:
                attribute.doc_string = ""
                if attribute.HasField("t"):
                    attribute.t.doc_string = ""


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, those of branches and loop bodies too."""
    for part in _graphs(graph):
        yield from part.node


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _is_random(node: NodeProto, graph: GraphProto) -> bool:
    if node.op_type in _RANDOM and node.domain in _STANDARD:
        return True
    if node.op_type != "Dropout" or len(node.input) < 3 or not node.input[2]:
        return False
    return _scalar(node.input[2], graph) is not False


def _scalar(name: str, graph: GraphProto) -> bool | None:
    """A constant truth value; None where it is no constant."""
    for tensor in graph.initializer:
        if tensor.name == name:
            return bool(onnx.numpy_helper.to_array(tensor))
    for node in all_nodes(graph):
        if name in node.output and node.op_type == "Constant":
            return any(bool(onnx.numpy_helper.to_array(attribute.t)) for attribute in node.attribute)
    return None


def _told(node: NodeProto) -> str:
    """An operator, and the line of the module that made it where the exporter noted it."""
    trace = next((entry.value for entry in node.metadata_props if entry.key == _STACK_TRACE), "")
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not lines:
        return str(node.op_type)
    path, _, rest = lines[-1].removeprefix('File "').partition('"')
    return f"{node.op_type} ({path.rpartition('/')[2]}{rest.rpartition(', in ')[0]})"


def _times(count: int) -> str:
    return f" × {count}" if count > 1 else ""


def _value_faults(where: str, spec: TensorSpec, value: ValueInfoProto) -> list[str]:
    faults = _type_faults(where, spec, value)
    if (axes := axes_of(value)) is None:
        return [*faults, f"{where}: the graph does not say its axes"]
    if len(axes) != len(spec.axes):
        return [*faults, f"{where}: {len(spec.axes)} axes declared, the graph has {len(axes)}"]
    for axis, found in zip(spec.axes, axes, strict=True):
        if isinstance(axis, str) and isinstance(found, int):
            faults.append(f"{where}: axis {axis}: declared to change, the graph fixes it to {found}")
        elif isinstance(axis, int) and found != axis:
            faults.append(f"{where}: an axis of size {axis} is declared, the graph has {found or 'any'}")
    return faults


def _output_faults(where: str, spec: TensorSpec, value: ValueInfoProto) -> list[str]:
    """A graph's own word on the sizes of its outputs is often wrong: two numbers that differ are a fault, the rest is
    shown by running it."""
    faults, axes = _type_faults(where, spec, value), axes_of(value)
    if axes is not None and len(axes) != len(spec.axes):
        return [*faults, f"{where}: {len(spec.axes)} axes declared, the graph has {len(axes)}"]
    pairs = zip(spec.axes, axes or (), strict=False)
    faults += [
        f"{where}: an axis of size {axis} is declared, the graph has {found}"
        for axis, found in pairs
        if isinstance(axis, int) and isinstance(found, int) and axis != found
    ]
    return faults


def _type_faults(where: str, spec: TensorSpec, value: ValueInfoProto) -> list[str]:
    found = dtype_of(value)
    return [] if found == spec.dtype else [f"{where}: {spec.dtype} declared, the graph has {found}"]


def dtype_of(value: ValueInfoProto) -> str:
    """The type of an input or output, by the name that a manifest gives it; ONNX's own for what is not served."""
    number = value.type.tensor_type.elem_type
    names = {number: name for name, number in DTYPES.items()}
    if number not in TensorProto.DataType.values():
        return f"type {number}, which is none of ONNX's"
    return names.get(number) or str(TensorProto.DataType.Name(number)).lower()


def axes_of(value: ValueInfoProto) -> list[str | int] | None:
    """The axes of an input or output: a number, a symbol, or "" where nothing is said; None without any."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims]


def _part_outputs(graph: GraphProto) -> None:
    """Every output gets a value of its own: not an input, not a constant, not another output's."""
    taken = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names = _names(graph)
    for index, value in enumerate(graph.output):
        if value.name in taken:
            new = _free(f"{value.name}_{index}", names)
            graph.node.append(helper.make_node("Identity", [value.name], [new], name=new))
            value.name = new
        taken.add(value.name)


def _moved(graph: GraphProto, wanted: Sequence[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Other names for what inside the graph has a name that the signature wants."""
    names = _names(graph)
    inside = (names & set(wanted)) - set(renamed)
    return {name: _free(f"{name}_inside", names | set(wanted)) for name in sorted(inside)}


def _free(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _names(graph: GraphProto) -> set[str]:
    """Every name of a value, inside branches too."""
    found: set[str] = set()
    for part in _graphs(graph):
        found |= {value.name for value in (*part.input, *part.output)} | {tensor.name for tensor in part.initializer}
        found |= {name for node in part.node for name in (*node.input, *node.output)}
    return found - {""}


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    for part in _graphs(graph):
        for tensor in (*part.initializer, *part.input, *part.output):
            tensor.name = names.get(tensor.name, tensor.name)
        for node in part.node:
            for values in (node.input, node.output):
                values[:] = [names.get(name, name) for name in values]
