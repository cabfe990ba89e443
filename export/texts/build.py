"""An encoder as ONNX graphs, from its shape and the offsets of its weights. Needs no torch.

In float32 both graphs hold the same nodes; `attend` also multiplies the attention weights by the mask and gives them
out. In float16, made for GPUs, `encode` has the fused operator `Attention` in their place; hidden states and matrix
products are float16, pooling and the softmax whose weights are given out are float32, and so is every output.

Attention follows the one masking rule, `where(keep, scores, finfo.min) → softmax → × keep`, in the form that was
measured to be the fastest on CPU: adding finfo.min is the same as choosing it (every score is lost in its rounding),
and multiplying the values by `keep` instead of the weights is exact where the weights are not given out (a masked
column weighs nothing unless the whole row is masked, and then zeroed values give zeros).

The fused operator gets the same mask as a float16 bias. Adding float16's own lowest value would pass its range, and a
row of minus infinities gives NaN; half of that leaves a score as much room again on either side, and the weight of a
masked column is still exactly 0. The values are zeroed here too: what a fully masked row gets depends on no kernel.

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
from export.graph import AXES_2D, FUSED_OPSET, OPSET, GraphBuilder
from export.texts.pooling import pool
from models.config import EncoderConfig
from service.manifest import DERIVED, WEIGHTS, GraphSpec, Meaning, Precision, Role, TensorSpec

_INPUTS: dict[str, Meaning] = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
    "pooling_mask": "pooling_mask",
}
_LOWEST = float(np.finfo(np.float32).min)
_FUSED_LOWEST = -float(2**15)


@dataclass(frozen=True, slots=True)
class GraphKind:
    """Which graph of a bundle. precision: of weights, hidden states and matrix products."""

    role: Role
    precision: Precision = "float32"

    @property
    def is_half(self) -> bool:
        """True for float16."""
        return self.precision == "float16"

    @property
    def has_attention(self) -> bool:
        """The attention weights are outputs."""
        return self.role == "attend"

    @property
    def is_fused(self) -> bool:
        """Attention is one operator, which gives no weights out."""
        return self.is_half and not self.has_attention

    @property
    def opset(self) -> int:
        """The oldest that has every operator."""
        return FUSED_OPSET if self.is_fused else OPSET

    @property
    def dtype(self) -> int:
        """ONNX's number for the precision."""
        return int(TensorProto.FLOAT16 if self.is_half else TensorProto.FLOAT)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What every layer uses: the builder, the shape of the model, and the tensors made once a call.

    rows: keep as `[batch · seq, 1]`; columns: keep as `[batch, 1, 1, seq]`, float32; bias: 0 where kept, very low
    elsewhere, `[batch, 1, 1, seq]` float32, or `[batch, 1, seq, seq]` float16 for the fused operator;
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


def build_graph(
    config: EncoderConfig, weights: Mapping[str, StoredTensor], *, pooling: Sequence[str], kind: GraphKind
) -> onnx.ModelProto:
    """One graph.

    weights: canonical name → where the tensor lies in `weights.safetensors`, in float16 in `derived.safetensors`.
    """
    file = DERIVED if kind.is_half else WEIGHTS
    graph = GraphBuilder(f"{config.family}_{kind.role}", weights, weights_file=file, opset=kind.opset)
    for name in _INPUTS:
        graph.input(name)
    scope = _open_scope(graph, config, kind)
    hidden = _embeddings(scope)
    for layer in range(config.num_layers):
        hidden = _layer(scope, hidden, layer)
    if kind.is_half:
        hidden = graph.node("Cast", [hidden], "token_embeddings.rows", to=TensorProto.FLOAT)
    tokens = graph.node("Reshape", [hidden, scope.to_tokens], "token_embeddings")  # [batch, seq, dim]
    pool(graph, tokens, pooling)
    for spec in graph_spec(config, pooling=pooling, kind=kind).outputs:
        graph.output(spec.name, spec.axes)
    return graph.model()


def graph_spec(config: EncoderConfig, *, pooling: Sequence[str], kind: GraphKind) -> GraphSpec:
    """What the manifest says of one graph."""
    below: dict[Meaning, int] = {"token_ids": config.vocab_size, "token_types": config.num_token_types}
    inputs = tuple(
        TensorSpec(name=name, dtype="int64", axes=AXES_2D, meaning=meaning, below=below.get(meaning))
        for name, meaning in _INPUTS.items()
    )
    outputs = [
        TensorSpec(name="token_embeddings", dtype="float32", axes=(*AXES_2D, config.dim), meaning="token_embeddings"),
        TensorSpec(name="pooled", dtype="float32", axes=("batch", config.dim * len(pooling)), meaning="pooled"),
    ]
    if kind.has_attention:
        axes = ("batch", config.num_heads, "seq", "seq")
        outputs += [
            TensorSpec(name=f"attention.{layer}", dtype="float32", axes=axes, meaning="attention", layer=layer)
            for layer in range(config.num_layers)
        ]
    return GraphSpec(
        role=kind.role, file=f"{kind.role}.onnx", precision=kind.precision, providers=("cpu", "cuda"),
        opset=kind.opset, masks="any", inputs=inputs, outputs=tuple(outputs),
    )  # fmt: skip


def _open_scope(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind) -> _Scope:
    shape = graph.node("Shape", ["input_ids"], "shape")
    rows = graph.node("Reshape", ["attention_mask", graph.ints("one_column", -1, 1)], "mask_rows")
    columns = graph.node("Unsqueeze", ["attention_mask", graph.ints("axes_1_2", 1, 2)], "mask_columns")
    columns = graph.node("Cast", [columns], "keep_columns", to=TensorProto.FLOAT)
    masked = graph.node("Sub", [graph.floats("one", 1.0), columns], "masked")
    lowest = graph.floats("lowest", _FUSED_LOWEST if kind.is_fused else _LOWEST)
    heads = graph.ints("heads_head_dim", config.num_heads, config.head_dim)
    return _Scope(
        graph=graph,
        config=config,
        kind=kind,
        rows=graph.node("Cast", [rows], "keep_rows", to=kind.dtype),
        columns=columns,
        bias=_bias(graph, kind, graph.node("Mul", [masked, lowest], "attention_bias")),
        to_heads=graph.node("Concat", [shape, heads], "to_heads", axis=0),
        to_tokens=graph.node("Concat", [shape, graph.ints("dim", config.dim)], "to_tokens", axis=0),
    )


def _bias(graph: GraphBuilder, kind: GraphKind, bias: str) -> str:
    """The fused operator broadcasts over heads only. `[batch, 1, 1, seq]` -> `[batch, 1, seq, seq]` float16"""
    if not kind.is_fused:
        return bias
    half = graph.node("Cast", [bias], "attention_bias.half", to=TensorProto.FLOAT16)
    seq = graph.node("Shape", ["input_ids"], "query_seq", start=1, end=2)
    shape = graph.node("Concat", [graph.ints("one_one", 1, 1), seq, graph.ints("one_axis", 1)], "to_queries", axis=0)
    return graph.node("Expand", [half, shape], "attention_bias.queries")


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
    if not scope.kind.has_attention:
        value = graph.node("Mul", [value, scope.rows], f"{name}.value.kept")
    if scope.kind.is_fused:
        return _fused(scope, (query, key, value), name)
    query = _split_heads(scope, query, (0, 2, 1, 3))  # [batch, heads, seq, head_dim]
    key = _split_heads(scope, key, (0, 2, 3, 1))  # [batch, heads, head_dim, seq]
    value = _split_heads(scope, value, (0, 2, 1, 3))
    scores = graph.node("MatMul", [query, key], f"{name}.scores")  # [batch, heads, seq, seq]
    if scope.kind.is_half:
        scores = graph.node("Cast", [scores], f"{name}.scores.single", to=TensorProto.FLOAT)
    weights = graph.node(
        "Softmax", [graph.node("Add", [scores, scope.bias], f"{name}.masked")], f"{name}.softmax", axis=-1
    )
    if scope.kind.has_attention:
        weights = graph.node("Mul", [weights, scope.columns], f"attention.{layer}")
    if scope.kind.is_half:
        weights = graph.node("Cast", [weights], f"{name}.weights.half", to=TensorProto.FLOAT16)
    context = graph.node("MatMul", [weights, value], f"{name}.context")
    context = graph.node("Transpose", [context], f"{name}.context.tokens", perm=[0, 2, 1, 3])
    return graph.node("Reshape", [context, _flat(scope)], f"{name}.context.rows")  # [batch · seq, dim]


def _fused(scope: _Scope, projected: tuple[str, str, str], name: str) -> str:
    """query, key, value as rows, the query scaled -> context as rows. No `softmax_precision`: CUDA refuses it."""
    graph, heads = scope.graph, scope.config.num_heads
    inputs = [graph.node("Reshape", [rows, scope.to_tokens], f"{rows}.tokens") for rows in projected]
    context = graph.node(
        "Attention", [*inputs, scope.bias], f"{name}.context", q_num_heads=heads, kv_num_heads=heads, scale=1.0
    )  # [batch, seq, dim]
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
