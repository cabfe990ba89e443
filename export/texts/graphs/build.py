"""An encoder as ONNX graphs, from its shape and the offsets of its weights. Needs no torch.

In float32 both graphs hold the same nodes; `attend` also multiplies the attention weights by the mask and gives them
out, and cuts no local layer into chunks. In float16, made for GPUs, `encode` has the fused operator `Attention` in
their place; hidden states and matrix products are float16, pooling and the softmax whose weights are given out are
float32, and so is every output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto

from export.checkpoint import StoredTensor
from export.graph import GraphBuilder
from export.texts.graphs.attention import attention
from export.texts.graphs.dense import apply_dense
from export.texts.graphs.embeddings import embeddings
from export.texts.graphs.heads import apply_head
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.parts import feed_forward, layer_norm, linear
from export.texts.graphs.pooling import pool
from export.texts.graphs.scope import Scope, open_scope
from export.texts.graphs.spec import graph_inputs, graph_opset, graph_spec, pooled_width
from models.config import EncoderConfig, Norm
from models.families.parameters import parameter_of
from models.head_config import DenseConfig, HeadConfig


def build_graph(  # noqa: PLR0913 - one parameter for each thing that may stand on an encoder
    config: EncoderConfig,
    weights: Mapping[str, StoredTensor],
    *,
    pooling: Sequence[str] = (),
    head: HeadConfig | None = None,
    dense: Sequence[DenseConfig] = (),
    pooled_dim: int | None = None,
    kind: GraphKind,
) -> onnx.ModelProto:
    """One graph, which pools, has a head, or does neither and gives vectors of tokens alone.

    weights: canonical name → where the tensor lies, in the graph's precision. dense: what the pooled vectors go
    through, or those of tokens where nothing is pooled. pooled_dim: what they are cut to; None = they stay whole.
    """
    graph = GraphBuilder(f"{config.family}_{kind.role}", weights, opset=graph_opset(config, kind))
    for name in graph_inputs(config, pooling):
        graph.input(name)
    scope = open_scope(graph, config, kind)
    hidden = embeddings(scope)
    for layer in range(config.num_layers):
        hidden = _layer(scope, hidden, layer)
    hidden = _norm(scope, hidden, "final_norm", "pre")
    of_tokens = () if pooling else dense
    hidden = apply_dense(graph, of_tokens, hidden)
    rows = graph.node("Cast", [hidden], "token_embeddings.rows", to=TensorProto.FLOAT) if kind.is_half else hidden
    tokens = graph.node("Reshape", [rows, _to_tokens(scope, of_tokens)], "token_embeddings")  # [batch, seq, token_dim]
    if pooling:
        _pool(scope, tokens, pooling, dense, pooled_dim)
    elif head is not None:
        apply_head(scope, head, hidden, tokens)
    for spec in graph_spec(config, pooling=pooling, head=head, dense=dense, pooled_dim=pooled_dim, kind=kind).outputs:
        graph.output(spec.name, spec.axes)
    return graph.model()


def _to_tokens(scope: Scope, dense: Sequence[DenseConfig]) -> str:
    if not dense:
        return scope.to_tokens
    graph, dim = scope.graph, scope.graph.ints("token_dim", dense[-1].output_dim)
    return graph.node("Concat", [graph.node("Shape", ["input_ids"], "dense.shape"), dim], "dense.to_tokens", axis=0)


def _pool(
    scope: Scope, tokens: str, pooling: Sequence[str], dense: Sequence[DenseConfig], pooled_dim: int | None
) -> None:
    """Append `pooled` `[batch, pooled_dim]`: pooled, through the Dense modules, and cut. tokens: `[batch, seq, dim]`"""
    graph, width = scope.graph, pooled_width(scope.config, pooling, dense)
    dim = pooled_dim or width
    whole = "pooled.whole" if dim < width else "pooled"
    if dense:
        _project(scope, dense, pool(graph, tokens, pooling, "pooled.before_dense"), whole)
    else:
        pool(graph, tokens, pooling, whole)
    if dim < width:
        bounds = [graph.ints("pooled.first", 0), graph.ints("pooled.dim", dim), graph.ints("axis_1", 1)]
        graph.node("Slice", [whole, *bounds], "pooled")


def _project(scope: Scope, dense: Sequence[DenseConfig], vectors: str, name: str) -> None:
    """Append `name` `[batch, output_dim]` float32. vectors: `[batch, input_dim]` float32"""
    graph = scope.graph
    if scope.kind.is_half:  # as the weights are
        vectors = graph.node("Cast", [vectors], f"{vectors}.half", to=TensorProto.FLOAT16)
    graph.node("Cast", [apply_dense(graph, dense, vectors)], name, to=TensorProto.FLOAT)


def _layer(scope: Scope, hidden: str, layer: int) -> str:
    graph, name = scope.graph, f"layers.{layer}"
    attended = attention(scope, _norm(scope, hidden, f"{name}.attention_norm", "pre"), layer)
    attended = linear(scope, attended, f"{name}.attention.output")
    total = graph.node("Add", [attended, hidden], f"{name}.attention.residual")
    hidden = _norm(scope, total, f"{name}.attention_norm", "post")
    narrow = feed_forward(scope, _norm(scope, hidden, f"{name}.ffn_norm", "pre"), f"{name}.ffn")
    total = graph.node("Add", [narrow, hidden], f"{name}.ffn.residual")
    return _norm(scope, total, f"{name}.ffn_norm", "post")


def _norm(scope: Scope, rows: str, name: str, place: Norm) -> str:
    """Where the config has its norms; the first layer may have none before its attention."""
    is_there = scope.config.norm == place and scope.graph.has_weight(parameter_of(scope.config, f"{name}.weight"))
    return layer_norm(scope, rows, name) if is_there else rows
