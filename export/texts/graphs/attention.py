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

from collections.abc import Sequence
from math import sqrt

from onnx import TensorProto

from export.texts.graphs.parts import flat, linear
from export.texts.graphs.reach import Reach
from export.texts.graphs.scope import Scope


def attention(scope: Scope, hidden: str, layer: int) -> str:
    """Of one layer, before its output projection. rows -> rows `[batch · seq, dim]`"""
    graph, name = scope.graph, f"layers.{layer}.attention"
    # The scale rides on the query's Gemm: alpha scales the product, beta the bias.
    query = linear(scope, hidden, f"{name}.query", scale=1 / sqrt(scope.config.head_dim))
    key = linear(scope, hidden, f"{name}.key")
    value = linear(scope, hidden, f"{name}.value")
    reach = scope.reach(layer)
    if not _gives_weights(scope, reach):
        value = graph.node("Mul", [value, scope.rows], f"{name}.value.kept")
    query, key = (_turn(scope, reach, projected) for projected in (query, key))
    if reach.shown is not None:
        shown = [_meet(scope, reach.shown, part, is_query=part == query) for part in (query, key)]
        _give_out(scope, reach.shown, _softmax(scope, reach.shown, shown, f"{name}.shown"), layer)
    query = _meet(scope, reach, query, is_query=True)
    key, value = (_meet(scope, reach, projected, is_query=False) for projected in (key, value))
    mix = _fused if scope.kind.is_fused else _explicit
    return _join(scope, reach, mix(scope, reach, (query, key, value), layer), name)


def _gives_weights(scope: Scope, reach: Reach) -> bool:
    return scope.kind.has_attention and reach.shown is None


def _give_out(scope: Scope, reach: Reach, weights: str, layer: int) -> str:
    return scope.graph.node("Mul", [weights, reach.columns], f"attention.{layer}")


def _explicit(scope: Scope, reach: Reach, parts: tuple[str, str, str], layer: int) -> str:
    """query, key, value as `[batch, seq, heads, head_dim]`, the query scaled -> context, the same"""
    graph, name = scope.graph, f"layers.{layer}.attention"
    weights = _softmax(scope, reach, parts[:2], name)
    if _gives_weights(scope, reach):
        weights = _give_out(scope, reach, weights, layer)
    if scope.kind.is_half:
        weights = graph.node("Cast", [weights], f"{name}.weights.half", to=TensorProto.FLOAT16)
    value = graph.node("Transpose", [parts[2]], f"{parts[2]}.by_head", perm=[0, 2, 1, 3])
    context = graph.node("MatMul", [weights, value], f"{name}.context")
    return graph.node("Transpose", [context], f"{name}.context.tokens", perm=[0, 2, 1, 3])


def _softmax(scope: Scope, reach: Reach, parts: Sequence[str], name: str) -> str:
    """query, key as `[batch, seq, heads, head_dim]`, the query scaled -> weights `[batch, heads, seq, seq]`, float32"""
    graph = scope.graph
    query, key = (
        graph.node("Transpose", [part], f"{part}.by_head", perm=order)
        for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1]), strict=True)
    )
    scores = graph.node("MatMul", [query, key], f"{name}.scores")
    if scope.kind.is_half:
        scores = graph.node("Cast", [scores], f"{name}.scores.single", to=TensorProto.FLOAT)
    masked = graph.node("Add", [scores, reach.bias], f"{name}.masked")
    return graph.node("Softmax", [masked], f"{name}.softmax", axis=-1)


def _fused(scope: Scope, reach: Reach, parts: tuple[str, str, str], layer: int) -> str:
    """query, key, value as `[batch, seq, dim]`, the query scaled -> context, the same"""
    heads = scope.config.num_heads
    # No `softmax_precision`: CUDA refuses it.
    options = {"q_num_heads": heads, "kv_num_heads": heads, "scale": 1.0}
    return scope.graph.node("Attention", [*parts, reach.bias], f"layers.{layer}.attention.context", **options)


def _turn(scope: Scope, reach: Reach, rows: str) -> str:
    """Queries or keys by their positions. rows -> `[batch, seq, dim]`, or rows when positions are not rotary"""
    if reach.turns is None or scope.positions is None:
        return rows
    tokens = scope.graph.node("Reshape", [rows, scope.to_tokens], f"{rows}.tokens")
    inputs = [tokens, *reach.turns, scope.positions]
    return scope.graph.node("RotaryEmbedding", inputs, f"{rows}.turned", num_heads=scope.config.num_heads)


def _meet(scope: Scope, reach: Reach, tokens: str, *, is_query: bool) -> str:
    """Rows or `[batch, seq, dim]` -> in the shape that attention takes, chunk by chunk where there are chunks."""
    graph, chunks = scope.graph, reach.chunks
    if chunks is not None:
        whole = graph.node("Reshape", [tokens, scope.to_tokens], f"{tokens}.whole")
        places = chunks.queries if is_query else chunks.keys
        tokens = graph.node("Gather", [whole, places], f"{tokens}.chunks", axis=1)
    return graph.node("Reshape", [tokens, reach.to_queries if is_query else reach.to_keys], f"{tokens}.heads")


def _join(scope: Scope, reach: Reach, context: str, name: str) -> str:
    """What attention gives -> rows, `[batch · seq, dim]`"""
    graph = scope.graph
    if reach.chunks is not None:
        context = graph.node("Reshape", [context, reach.chunks.to_joined], f"{name}.context.joined")
        ends = [graph.ints("axis_0", 0), "seq_axis", graph.ints("axis_1", 1)]
        context = graph.node("Slice", [context, *ends], f"{name}.context.whole")  # [batch, seq, dim]
    return graph.node("Reshape", [context, flat(scope)], f"{name}.context.rows")
