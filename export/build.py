"""An encoder as ONNX graphs, from its shape and the offsets of its weights. Needs no torch.

Both graphs hold the same nodes; `attend` also multiplies the attention weights by the mask and gives them out.

Attention follows the one masking rule, `where(keep, scores, finfo.min) → softmax → × keep`, in the form that was
measured to be the fastest on CPU: adding finfo.min is the same as choosing it (every score is lost in its rounding),
and multiplying the values by `keep` instead of the weights is exact where the weights are not given out (a masked
column weighs nothing unless the whole row is masked, and then zeroed values give zeros).

Linear layers are Gemm over `[batch · seq, dim]`: with transB = 1 it reads the weights as PyTorch stores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto

from export.checkpoint import StoredTensor
from export.graph import AXES_2D, OPSET, GraphBuilder
from export.pooling import pool
from models.config import EncoderConfig
from service.bundle import WEIGHTS, GraphSpec, Role, TensorSpec

_INPUTS = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
    "pooling_mask": "pooling_mask",
}


@dataclass(frozen=True, slots=True)
class _Scope:
    """What every layer uses: the builder, the shape of the model, and the tensors made once a call.

    rows: keep as `[batch · seq, 1]`; columns: keep as `[batch, 1, 1, seq]`; bias: 0 where kept, finfo.min elsewhere;
    to_heads, to_tokens: target shapes `[batch, seq, heads, head_dim]` and `[batch, seq, dim]`.
    """

    graph: GraphBuilder
    config: EncoderConfig
    has_attention: bool
    rows: str
    columns: str
    bias: str
    to_heads: str
    to_tokens: str


def build_graph(
    config: EncoderConfig, weights: Mapping[str, StoredTensor], *, pooling: Sequence[str], role: Role
) -> onnx.ModelProto:
    """The graph of one role. weights: canonical name → where the tensor lies in `weights.safetensors`."""
    graph = GraphBuilder(f"{config.family}_{role}", weights, weights_file=WEIGHTS)
    for name in _INPUTS:
        graph.input(name)
    scope = _open_scope(graph, config, role)
    hidden = _embeddings(scope)
    for layer in range(config.num_layers):
        hidden = _layer(scope, hidden, layer)
    tokens = graph.node("Reshape", [hidden, scope.to_tokens], "token_embeddings")  # [batch, seq, dim]
    pool(graph, tokens, pooling)
    for spec in graph_spec(config, pooling=pooling, role=role).outputs:
        graph.output(spec.name, spec.axes)
    return graph.model()


def graph_spec(config: EncoderConfig, *, pooling: Sequence[str], role: Role) -> GraphSpec:
    """What the manifest says of the graph of one role."""
    inputs = tuple(TensorSpec(name=n, dtype="int64", axes=AXES_2D, meaning=m) for n, m in _INPUTS.items())  # type: ignore[arg-type]
    outputs = [
        TensorSpec(name="token_embeddings", dtype="float32", axes=(*AXES_2D, config.dim), meaning="token_embeddings"),
        TensorSpec(name="pooled", dtype="float32", axes=("batch", config.dim * len(pooling)), meaning="pooled"),
    ]
    if role == "attend":
        axes = ("batch", config.num_heads, "seq", "seq")
        outputs += [
            TensorSpec(name=f"attention.{layer}", dtype="float32", axes=axes, meaning="attention")
            for layer in range(config.num_layers)
        ]
    return GraphSpec(
        role=role, file=f"{role}.onnx", precision="float32", providers=("cpu", "cuda"), opset=OPSET, masks="any",
        inputs=inputs, outputs=tuple(outputs),
    )  # fmt: skip


def _open_scope(graph: GraphBuilder, config: EncoderConfig, role: Role) -> _Scope:
    shape = graph.node("Shape", ["input_ids"], "shape")
    rows = graph.node("Reshape", ["attention_mask", graph.ints("one_column", -1, 1)], "mask_rows")
    columns = graph.node("Unsqueeze", ["attention_mask", graph.ints("axes_1_2", 1, 2)], "mask_columns")
    columns = graph.node("Cast", [columns], "keep_columns", to=TensorProto.FLOAT)
    masked = graph.node("Sub", [graph.floats("one", 1.0), columns], "masked")
    lowest = graph.floats("lowest", float(np.finfo(np.float32).min))
    heads = graph.ints("heads_head_dim", config.num_heads, config.head_dim)
    return _Scope(
        graph=graph,
        config=config,
        has_attention=role == "attend",
        rows=graph.node("Cast", [rows], "keep_rows", to=TensorProto.FLOAT),
        columns=columns,
        bias=graph.node("Mul", [masked, lowest], "attention_bias"),
        to_heads=graph.node("Concat", [shape, heads], "to_heads", axis=0),
        to_tokens=graph.node("Concat", [shape, graph.ints("dim", config.dim)], "to_tokens", axis=0),
    )


def _embeddings(scope: _Scope) -> str:
    graph, config = scope.graph, scope.config
    words = graph.node("Gather", [graph.weight("embeddings.word.weight"), "input_ids"], "embeddings.words")
    types = graph.node("Gather", [graph.weight("embeddings.token_type.weight"), "token_type_ids"], "embeddings.types")
    seq = graph.node("Shape", ["input_ids"], "seq", start=1, end=2)
    first = graph.ints("first_position", config.position_offset)
    end = graph.node("Add", [seq, first], "end_position")
    table = graph.weight("embeddings.position.weight")
    places = graph.node("Slice", [table, first, end, graph.ints("axis_0", 0)], "embeddings.positions")  # [seq, dim]
    total = graph.node("Add", [graph.node("Add", [words, types], "embeddings.words_types"), places], "embeddings.sum")
    rows = graph.node("Reshape", [total, _flat(scope)], "embeddings.rows")  # [batch · seq, dim]
    return _layer_norm(scope, rows, "embeddings.norm")


def _layer(scope: _Scope, hidden: str, layer: int) -> str:
    graph, name = scope.graph, f"layers.{layer}"
    attended = _linear(scope, _attention(scope, hidden, layer), f"{name}.attention.output")
    total = graph.node("Add", [attended, hidden], f"{name}.attention.residual")
    hidden = _layer_norm(scope, total, f"{name}.attention_norm")
    wide = _activation(scope, _linear(scope, hidden, f"{name}.ffn.up"), f"{name}.ffn.activation")
    total = graph.node("Add", [_linear(scope, wide, f"{name}.ffn.down"), hidden], f"{name}.ffn.residual")
    return _layer_norm(scope, total, f"{name}.ffn_norm")


def _attention(scope: _Scope, hidden: str, layer: int) -> str:
    graph, name = scope.graph, f"layers.{layer}.attention"
    # The scale rides on the query's Gemm: alpha scales the product, beta the bias.
    query = _linear(scope, hidden, f"{name}.query", scale=1 / sqrt(scope.config.head_dim))
    key = _linear(scope, hidden, f"{name}.key")
    value = _linear(scope, hidden, f"{name}.value")
    if not scope.has_attention:
        value = graph.node("Mul", [value, scope.rows], f"{name}.value.kept")
    query = _split_heads(scope, query, (0, 2, 1, 3))  # [batch, heads, seq, head_dim]
    key = _split_heads(scope, key, (0, 2, 3, 1))  # [batch, heads, head_dim, seq]
    value = _split_heads(scope, value, (0, 2, 1, 3))
    scores = graph.node("MatMul", [query, key], f"{name}.scores")  # [batch, heads, seq, seq]
    weights = graph.node(
        "Softmax", [graph.node("Add", [scores, scope.bias], f"{name}.masked")], f"{name}.softmax", axis=-1
    )
    if scope.has_attention:
        weights = graph.node("Mul", [weights, scope.columns], f"attention.{layer}")
    context = graph.node("MatMul", [weights, value], f"{name}.context")
    context = graph.node("Transpose", [context], f"{name}.context.tokens", perm=[0, 2, 1, 3])
    return graph.node("Reshape", [context, _flat(scope)], f"{name}.context.rows")  # [batch · seq, dim]


def _split_heads(scope: _Scope, rows: str, order: tuple[int, ...]) -> str:
    heads = scope.graph.node("Reshape", [rows, scope.to_heads], f"{rows}.heads")  # [batch, seq, heads, head_dim]
    return scope.graph.node("Transpose", [heads], f"{rows}.by_head", perm=list(order))


def _linear(scope: _Scope, rows: str, name: str, *, scale: float = 1.0) -> str:
    weights = [scope.graph.weight(f"{name}.weight"), scope.graph.weight(f"{name}.bias")]
    return scope.graph.node("Gemm", [rows, *weights], name, transB=1, alpha=scale, beta=scale)


def _layer_norm(scope: _Scope, rows: str, name: str) -> str:
    weights = [scope.graph.weight(f"{name}.weight"), scope.graph.weight(f"{name}.bias")]
    return scope.graph.node("LayerNormalization", [rows, *weights], name, axis=-1, epsilon=scope.config.layer_norm_eps)


def _activation(scope: _Scope, rows: str, name: str) -> str:
    if scope.config.activation == "relu":
        return scope.graph.node("Relu", [rows], name)
    approximate = "tanh" if scope.config.activation == "gelu_tanh" else "none"
    return scope.graph.node("Gelu", [rows], name, approximate=approximate)


def _flat(scope: _Scope) -> str:
    return scope.graph.ints("rows_dim", -1, scope.config.dim)
