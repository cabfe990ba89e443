"""A ready graph with the bundle's inputs and outputs: its own nodes as they are, ours before and behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto, helper

from export.graph import AXES_2D, GraphBuilder
from export.modules.contract import DTYPES, dress
from export.modules.signature import Signature
from export.onnx_file import OnnxFile
from export.texts.graphs.heads import pool_sparse
from export.texts.graphs.pooling import pool
from export.texts.ready.bare import Axes
from export.texts.ready.inputs import INPUTS, POSITIONS, input_dtypes
from export.texts.ready.older import OlderBuilder
from export.texts.ready.outputs import Chosen, meaning_of
from models.head_config import HeadConfig
from service.graph_spec import DType, GraphSpec, Meaning, Precision, Role, TensorSpec
from service.manifest import Task

_TOKENS, _POOLED, _LOGITS = "ready.tokens", "ready.pooled", "ready.logits"
_POOLING_MASK = TensorSpec(name="pooling_mask", dtype="int64", axes=AXES_2D, meaning="pooling_mask")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the bundle's graph is to give. below: how many ids there are, by meaning.

    pooling: of the vectors of tokens; empty = the graph pools itself, or the task needs none. head: of sparse vectors.
    first_position: where `position_ids` begin. attention: outputs of the file that are attention weights, by layer, all
    of which the graph `attend` gives.
    """

    task: Task
    chosen: Chosen
    precision: Precision
    below: Mapping[Meaning, int]
    pooling: Sequence[str] = ()
    head: HeadConfig | None = None
    first_position: int = 0
    attention: Sequence[str] = ()

    @property
    def role(self) -> Role:
        """Of the graph."""
        return "attend" if self.attention else "encode"


def wire(file: OnnxFile, axes: Mapping[str, Axes], wanted: Wanted) -> GraphSpec:
    """Make the graph of a file the bundle's, in place. -> what the manifest says of it

    axes: of every output of floats.
    """
    graph = file.model.graph
    dtypes = input_dtypes(file.model)
    own = Signature(
        tuple(_input(name, dtype, wanted.below) for name, dtype in dtypes.items()),
        (*_raw_outputs(graph, axes, wanted.chosen), *(weights := _attention(axes, wanted.attention))),
        {},
    )
    before, behind = OlderBuilder("before", {}, opset=file.opset), OlderBuilder("behind", {}, opset=file.opset)
    if POSITIONS in dtypes:
        _count_positions(before, dtypes[POSITIONS], wanted.first_position)
    outputs = [*_append(behind, {spec.name: spec.axes for spec in own.outputs}, wanted), *weights]
    _leave(graph, own.inputs, [*filter(None, wanted.chosen.names), *wanted.attention])
    dress(file.model, own, free=(_made(before) | _made(behind)) - {POSITIONS})
    inputs = [spec for spec in own.inputs if spec.name != POSITIONS]
    inputs += [_POOLING_MASK] if wanted.pooling else []
    _join(graph, before, behind)
    _declare(graph.input, inputs)
    _declare(graph.output, outputs)
    return GraphSpec(
        role=wanted.role, file=f"{wanted.role}.onnx", precision=wanted.precision, providers=("cpu", "cuda"),
        opset=file.opset, masks="right", inputs=tuple(inputs), outputs=tuple(outputs),
    )  # fmt: skip


def _input(name: str, dtype: DType, below: Mapping[Meaning, int]) -> TensorSpec:
    meaning = INPUTS[name]
    return TensorSpec(name=name, dtype=dtype, axes=AXES_2D, meaning=meaning, below=below.get(meaning))


def _raw_outputs(graph: GraphProto, axes: Mapping[str, Axes], chosen: Chosen) -> Iterator[TensorSpec]:
    types = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    for name, raw in zip(chosen.names, (_TOKENS, _POOLED, _LOGITS), strict=True):
        if name is not None:
            dtype: DType = "float16" if types[name] == TensorProto.FLOAT16 else "float32"
            yield TensorSpec(name=raw, dtype=dtype, axes=axes[name], meaning="token_embeddings")


def _attention(axes: Mapping[str, Axes], names: Sequence[str]) -> list[TensorSpec]:
    return [
        TensorSpec(name=f"attention.{layer}", dtype="float32", axes=axes[name], meaning="attention", layer=layer)
        for layer, name in enumerate(names)
    ]


def _append(graph: GraphBuilder, axes: Mapping[str, Axes], wanted: Wanted) -> list[TensorSpec]:
    """The nodes behind a graph. axes: of its outputs that are used, by our names -> the bundle's outputs, float32"""
    outputs = []
    if _TOKENS in axes:
        graph.node("Cast", [_TOKENS], "token_embeddings", to=TensorProto.FLOAT)
        outputs.append(_output("token_embeddings", axes[_TOKENS]))
    if wanted.pooling:
        pool(graph, "token_embeddings", wanted.pooling, "pooled")
        outputs.append(_output("pooled", ("batch", int(axes[_TOKENS][-1]) * len(wanted.pooling))))
    elif _POOLED in axes:
        graph.node("Cast", [_POOLED], "pooled", to=TensorProto.FLOAT)
        outputs.append(_output("pooled", axes[_POOLED]))
    if _LOGITS in axes:
        meaning = meaning_of(wanted.task)
        graph.node("Cast", [_LOGITS], meaning, to=TensorProto.FLOAT)
        if wanted.head is None:
            outputs.append(_output(meaning, axes[_LOGITS]))
        else:
            mask = graph.node("Cast", ["attention_mask"], "head.mask", to=TensorProto.FLOAT)
            pool_sparse(graph, wanted.head, meaning, mask)
            outputs.append(_output("sparse", ("batch", axes[_LOGITS][-1])))
    return outputs


def _output(name: Meaning, axes: Axes) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", axes=axes, meaning=name)


def _count_positions(graph: GraphBuilder, dtype: DType, first: int) -> None:
    """`position_ids` `[batch, seq]`: from the first column on, whatever stands in it."""
    sizes = graph.node("Shape", ["input_ids"], "positions.sizes")
    seq = graph.node("Gather", [sizes, graph.constant("one_scalar", np.array(1))], "positions.seq")
    begin, one = graph.constant("first_scalar", np.array(first)), graph.constant("one_scalar", np.array(1))
    end = graph.node("Add", [seq, begin], "positions.end")
    row = graph.node("Range", [begin, end, one], "positions.row")
    rows = graph.node("Expand", [row, sizes], "positions.rows")
    graph.node("Cast", [rows], POSITIONS, to=DTYPES[dtype])


def _leave(graph: GraphProto, inputs: Sequence[TensorSpec], outputs: Sequence[str]) -> None:
    """Leave inputs and outputs in these orders, and no other output."""
    for values, names in ((graph.input, [spec.name for spec in inputs]), (graph.output, outputs)):
        by_name = {value.name: ValueInfoProto.FromString(value.SerializeToString()) for value in values}
        del values[:]
        values.extend(by_name[name] for name in names)


def _made(graph: GraphBuilder) -> set[str]:
    return {name for node in graph.nodes for name in node.output} | {tensor.name for tensor in graph.initializers}


def _join(graph: GraphProto, before: GraphBuilder, behind: GraphBuilder) -> None:
    nodes = [*before.nodes, *graph.node, *behind.nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(
        {tensor.name: tensor for part in (before, behind) for tensor in part.initializers}.values()
    )


def _declare(values: MutableSequence[ValueInfoProto], specs: Sequence[TensorSpec]) -> None:
    del values[:]
    values.extend(helper.make_tensor_value_info(spec.name, DTYPES[spec.dtype], list(spec.axes)) for spec in specs)
