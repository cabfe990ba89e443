"""A head as graph nodes: hidden states → logits of a text, logits of its tokens, or one sparse vector.

`models.heads` is the same in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from export.graph import GraphBuilder
from export.texts.graphs.pooling import POOLING
from export.texts.graphs.scope import Scope
from models.head_config import HeadActivation, HeadConfig
from service.graph_spec import Meaning

# Activation → operator and its attributes. Two are made of less, or of nothing.
_OPERATORS: Mapping[HeadActivation, tuple[str, dict[str, Any]]] = {
    "tanh": ("Tanh", {}),
    "relu": ("Relu", {}),
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "sigmoid": ("Sigmoid", {}),
}
# Which tokens go in → the pooling that takes them.
_POOLING = {"first": "cls", "mean": "mean"}


def output_meaning(head: HeadConfig) -> Meaning:
    """What the head's output means, which is also its name."""
    if head.sparse_pooling != "none":
        return "sparse"
    return "token_logits" if head.tokens == "each" else "logits"


def apply_head(scope: Scope, head: HeadConfig, rows: str, tokens: str) -> None:
    """Append the head's output, float32. Over one vector a text it is computed in float32 too: that costs nothing.

    rows: hidden states `[batch · seq, dim]` in the graph's precision
    tokens: the same `[batch, seq, dim]` in float32
    """
    graph = scope.graph
    mask = graph.node("Cast", ["attention_mask"], "head.mask", to=TensorProto.FLOAT)  # [batch, seq]
    if head.tokens != "each":
        pooled = POOLING[_POOLING[head.tokens]](graph, tokens, mask, "head.pooled")  # [batch, dim]
        _Layers(scope, head, is_single=True).apply(pooled, "logits")  # [batch, output_dim]
        return
    last = "head.rows.half" if scope.kind.is_half else "head.rows"
    logits = _Layers(scope, head, is_single=not scope.kind.is_half).apply(rows, last)  # [batch · seq, output_dim]
    if scope.kind.is_half:
        logits = graph.node("Cast", [logits], "head.rows", to=TensorProto.FLOAT)
    shape = [graph.node("Shape", ["input_ids"], "head.shape"), graph.ints("output_dim", head.output_dim)]
    to_tokens = graph.node("Concat", shape, "head.to_tokens", axis=0)
    logits = graph.node("Reshape", [logits, to_tokens], "token_logits")  # [batch, seq, output_dim]
    if head.sparse_pooling != "none":
        pool_sparse(graph, head, logits, mask)


@dataclass(frozen=True, slots=True)
class _Layers:
    """Dense layer, activation, norm and output layer. is_single: computed in float32, whatever the weights are in."""

    scope: Scope
    head: HeadConfig
    is_single: bool

    def apply(self, rows: str, name: str) -> str:
        """rows `[…, dim]` -> `[…, output_dim]`, under that name."""
        head, graph = self.head, self.scope.graph
        if head.dense_dim:
            rows = self._linear(rows, "head.dense", _names("head.dense", head.has_dense_bias))
            rows = activate(graph, head.activation, rows, "head.activation")
        if head.has_norm:
            weights = map(self._weight, _names("head.norm", head.has_norm_bias))
            epsilon = self.scope.config.layer_norm_eps
            rows = graph.node("LayerNormalization", [rows, *weights], "head.norm", axis=-1, epsilon=epsilon)
        names = _names("head.output", head.has_output_bias)
        if head.is_tied:
            names[0] = "embeddings.word.weight"
        return self._linear(rows, name, names)

    def _linear(self, rows: str, name: str, weights: Sequence[str]) -> str:
        return self.scope.graph.node("Gemm", [rows, *map(self._weight, weights)], name, transB=1)

    def _weight(self, name: str) -> str:
        graph = self.scope.graph
        if not (self.is_single and self.scope.kind.is_half):
            return graph.weight(name)
        return graph.node("Cast", [graph.weight(name)], f"{name}.single", to=TensorProto.FLOAT)


def _names(layer: str, has_bias: bool) -> list[str]:
    return [f"{layer}.weight", *([f"{layer}.bias"] if has_bias else [])]


def activate(graph: GraphBuilder, activation: HeadActivation, rows: str, name: str) -> str:
    """The activation of a head or a Dense module, under that name."""
    if activation == "identity":
        return rows
    if activation == "silu":
        return graph.node("Mul", [rows, graph.node("Sigmoid", [rows], f"{name}.gate")], name)
    operator, attributes = _OPERATORS[activation]
    return graph.node(operator, [rows], name, **attributes)


def pool_sparse(graph: GraphBuilder, head: HeadConfig, logits: str, mask: str) -> None:
    """Append `sparse`: logits `[batch, seq, vocab]`, mask `[batch, seq]` -> `[batch, vocab]`.

    What rises may be taken after the max.
    """
    axis = graph.ints("axis_1", 1)
    keep = graph.node("Unsqueeze", [mask, graph.ints("axis_2", 2)], "sparse.keep")  # [batch, seq, 1]
    kept = graph.node("Mul", [logits, keep], "sparse.kept")
    if head.sparse_pooling == "max":
        _weigh(graph, head, graph.node("ReduceMax", [kept, axis], "sparse.largest", keepdims=0), "sparse")
    else:
        graph.node("ReduceSum", [_weigh(graph, head, kept, "sparse.weights"), axis], "sparse", keepdims=0)


def _weigh(graph: GraphBuilder, head: HeadConfig, logits: str, name: str) -> str:
    """log(1 + relu), once more where the head says so."""
    rows = graph.node("Relu", [logits], f"{name}.relu")
    if head.sparse_activation == "log1p_relu":
        rows = _log1p(graph, rows, f"{name}.first")
    return _log1p(graph, rows, name)


def _log1p(graph: GraphBuilder, rows: str, name: str) -> str:
    return graph.node("Log", [graph.node("Add", [rows, graph.floats("one", 1.0)], f"{name}.plus_one")], name)
