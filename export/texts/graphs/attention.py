"""Attention as nodes, with the weights given out, without them, or as one fused operator.

Attention follows the one masking rule, `where(keep, scores, finfo.min) → softmax → × keep`, in the form that was
measured to be the fastest on CPU: adding finfo.min is the same as choosing it (every score is lost in its rounding),
and multiplying the values by `keep` instead of the weights is exact where the weights are not given out (a masked
column weighs nothing unless the whole row is masked, and then zeroed values give zeros).

The fused operator gets the same mask as a float16 bias. Adding float16's own lowest value would pass its range, and a
row of minus infinities gives NaN; half of that leaves a score as much room again on either side, and the weight of a
masked column is still exactly 0. The values are zeroed here too: what a fully masked row gets depends on no kernel.
"""

from __future__ import annotations

from math import sqrt

from onnx import TensorProto

from export.texts.graphs.parts import flat, linear
from export.texts.graphs.scope import Scope


def attention(scope: Scope, hidden: str, layer: int) -> str:
    """Of one layer, before its output projection. rows -> rows `[batch · seq, dim]`"""
    graph, name = scope.graph, f"layers.{layer}.attention"
    # The scale rides on the query's Gemm: alpha scales the product, beta the bias.
    query = linear(scope, hidden, f"{name}.query", scale=1 / sqrt(scope.config.head_dim))
    key = linear(scope, hidden, f"{name}.key")
    value = linear(scope, hidden, f"{name}.value")
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
    return graph.node("Reshape", [context, flat(scope)], f"{name}.context.rows")  # [batch · seq, dim]


def _fused(scope: Scope, projected: tuple[str, str, str], name: str) -> str:
    """query, key, value as rows, the query scaled -> context as rows. No `softmax_precision`: CUDA refuses it."""
    graph, heads = scope.graph, scope.config.num_heads
    inputs = [graph.node("Reshape", [rows, scope.to_tokens], f"{rows}.tokens") for rows in projected]
    context = graph.node(
        "Attention", [*inputs, scope.bias], f"{name}.context", q_num_heads=heads, kv_num_heads=heads, scale=1.0
    )  # [batch, seq, dim]
    return graph.node("Reshape", [context, flat(scope)], f"{name}.context.rows")  # [batch · seq, dim]


def _split_heads(scope: Scope, rows: str, order: tuple[int, ...]) -> str:
    heads = scope.graph.node("Reshape", [rows, scope.to_heads], f"{rows}.heads")  # [batch, seq, heads, head_dim]
    return scope.graph.node("Transpose", [heads], f"{rows}.by_head", perm=list(order))
