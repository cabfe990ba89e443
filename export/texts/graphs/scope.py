"""What every part of a graph uses, made once: masks, target shapes, and which keys each kind of layer meets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx import TensorProto

from export.graph import GraphBuilder
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.local import near_reach
from export.texts.graphs.reach import Reach, mask_bias, open_places
from export.texts.graphs.relative import relative_bias
from export.texts.graphs.rotary import open_turns
from models.config import EncoderConfig
from models.families.parameters import parameter_of


@dataclass(frozen=True, slots=True)
class Scope:
    """The builder, the shape of the model, and the tensors made once a call.

    rows: keep as `[batch · seq, 1]`; to_tokens: the target shape `[batch, seq, dim]`.
    all_keys, near_keys: of layers that attend everywhere and, where there are any, of local ones.
    positions: of every row, `[batch, seq]` int64, where they are rotary.
    """

    graph: GraphBuilder
    config: EncoderConfig
    kind: GraphKind
    rows: str
    to_tokens: str
    all_keys: Reach
    near_keys: Reach | None
    positions: str | None

    def weight(self, name: str) -> str:
        """A parameter of a part, by the part's own name: layers that share weights get the same tensor."""
        return self.graph.weight(parameter_of(self.config, name))

    def bias(self, name: str) -> str | None:
        """That of a part by the part's own name; None where it adds none."""
        parameter = parameter_of(self.config, f"{name}.bias")
        return self.graph.weight(parameter) if self.graph.has_weight(parameter) else None

    def weights(self, name: str) -> list[str]:
        """Weight and, where there is one, bias of a part by its own name."""
        return [self.weight(f"{name}.weight"), *filter(None, [self.bias(name)])]

    def reach(self, layer: int) -> Reach:
        """Of a layer, by its number."""
        return self.all_keys if self.near_keys is None or layer not in self.config.local_layers else self.near_keys


def open_scope(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind) -> Scope:
    """Append the nodes that make them."""
    shape = graph.node("Shape", ["input_ids"], "shape")
    rows = graph.node("Reshape", ["attention_mask", graph.ints("one_column", -1, 1)], "mask_rows")
    all_keys, near_keys, positions = _all_keys(graph, config, kind, shape), None, None
    if config.positions == "rotary" or config.local_layers:
        places = open_places(graph)
        if config.local_layers:
            near_keys = near_reach(graph, config, kind, all_keys, places)
            near_keys = replace(near_keys, turns=open_turns(graph, config, kind, places, is_local=True))
        all_keys = replace(all_keys, turns=open_turns(graph, config, kind, places, is_local=False))
        positions = graph.node("Expand", [places.each, shape], "positions")
    return Scope(
        graph=graph,
        config=config,
        kind=kind,
        rows=graph.node("Cast", [rows], "keep_rows", to=kind.dtype),
        to_tokens=graph.node("Concat", [shape, graph.ints("dim", config.dim)], "to_tokens", axis=0),
        all_keys=all_keys,
        near_keys=near_keys,
        positions=positions,
    )


def _all_keys(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, shape: str) -> Reach:
    columns = graph.node("Unsqueeze", ["attention_mask", graph.ints("axes_1_2", 1, 2)], "mask_columns")
    columns = graph.node("Cast", [columns], "keep_columns", to=TensorProto.FLOAT)
    bias = _bias(graph, config, kind, mask_bias(graph, kind, columns, "attention_bias"))
    ends = (config.dim,) if kind.is_fused else (config.num_heads, config.head_dim)
    heads = graph.node("Concat", [shape, graph.ints("head_axes", *ends)], "to_heads", axis=0)
    return Reach(columns, bias, to_queries=heads, to_keys=heads)


def _bias(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, masks: str) -> str:
    """masks: `[batch, 1, 1, seq]` -> with what heads add by relative position, and as the fused operator takes it.

    That is float16 `[batch, 1, seq, seq]`, for it broadcasts over heads only.
    """
    has_relative = config.num_relative_buckets > 0
    bias = masks
    if has_relative:
        bias = graph.node("Add", [masks, relative_bias(graph, config, kind)], "attention_bias.all")
    if not kind.is_fused:
        return bias
    half = graph.node("Cast", [bias], "attention_bias.half", to=TensorProto.FLOAT16)
    if has_relative:
        return half
    seq = graph.node("Shape", ["input_ids"], "query_seq", start=1, end=2)
    shape = graph.node("Concat", [graph.ints("one_one", 1, 1), seq, graph.ints("one_axis", 1)], "to_queries", axis=0)
    return graph.node("Expand", [half, shape], "attention_bias.queries")
