"""What every part of a graph uses, made once: masks and target shapes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from export.graph import GraphBuilder
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.relative import relative_bias
from models.config import EncoderConfig
from models.families.parameters import parameter_of

_LOWEST = float(np.finfo(np.float32).min)
_FUSED_LOWEST = -float(2**15)


@dataclass(frozen=True, slots=True)
class Scope:
    """The builder, the shape of the model, and the tensors made once a call.

    rows: keep as `[batch · seq, 1]`; columns: keep as `[batch, 1, 1, seq]`, float32; bias: 0 where kept, very low
    elsewhere, `[batch, 1, 1, seq]` float32, or `[batch, 1, seq, seq]` float16 for the fused operator; with relative
    positions, their bias where kept, `[batch, heads, seq, seq]`;
    to_heads, to_tokens: target shapes `[batch, seq, heads, head_dim]` and `[batch, seq, dim]`.
    """

    graph: GraphBuilder
    config: EncoderConfig
    kind: GraphKind
    rows: str
    columns: str
    bias: str
    to_heads: str
    to_tokens: str

    def weight(self, name: str) -> str:
        """A parameter of a part, by the part's own name: layers that share weights get the same tensor."""
        return self.graph.weight(parameter_of(self.config, name))


def open_scope(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind) -> Scope:
    """Append the nodes that make them."""
    shape = graph.node("Shape", ["input_ids"], "shape")
    rows = graph.node("Reshape", ["attention_mask", graph.ints("one_column", -1, 1)], "mask_rows")
    columns = graph.node("Unsqueeze", ["attention_mask", graph.ints("axes_1_2", 1, 2)], "mask_columns")
    columns = graph.node("Cast", [columns], "keep_columns", to=TensorProto.FLOAT)
    masked = graph.node("Sub", [graph.floats("one", 1.0), columns], "masked")
    lowest = graph.floats("lowest", _FUSED_LOWEST if kind.is_fused else _LOWEST)
    heads = graph.ints("heads_head_dim", config.num_heads, config.head_dim)
    return Scope(
        graph=graph,
        config=config,
        kind=kind,
        rows=graph.node("Cast", [rows], "keep_rows", to=kind.dtype),
        columns=columns,
        bias=_bias(graph, config, kind, graph.node("Mul", [masked, lowest], "attention_bias")),
        to_heads=graph.node("Concat", [shape, heads], "to_heads", axis=0),
        to_tokens=graph.node("Concat", [shape, graph.ints("dim", config.dim)], "to_tokens", axis=0),
    )


def _bias(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, masks: str) -> str:
    """masks: `[batch, 1, 1, seq]` -> as `Scope.bias` is. The fused operator broadcasts over heads only."""
    has_relative = config.num_relative_buckets > 0
    bias = masks
    if has_relative:
        bias = graph.node("Add", [masks, relative_bias(graph, config, kind)], "attention_bias.masked")
    if not kind.is_fused:
        return bias
    half = graph.node("Cast", [bias], "attention_bias.half", to=TensorProto.FLOAT16)
    if has_relative:
        return half
    seq = graph.node("Shape", ["input_ids"], "query_seq", start=1, end=2)
    shape = graph.node("Concat", [graph.ints("one_one", 1, 1), seq, graph.ints("one_axis", 1)], "to_queries", axis=0)
    return graph.node("Expand", [half, shape], "attention_bias.queries")
