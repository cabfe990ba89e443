"""Local attention as nodes: which keys are near, and how a long sequence is cut so that no others are met.

Dense, every query is scored against every key and the mask leaves the near ones: seq · seq. In chunks, each run of
queries meets the keys of its own positions and of `window` more on either side: seq · window, of time and of memory.
The products are the same; in float32, where that costs less, a short sequence is one chunk, which is the dense form.
"""

from __future__ import annotations

from dataclasses import replace

from onnx import TensorProto

from export.graph import GraphBuilder
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.reach import Chunks, Places, Reach, near_bias, whole
from models.config import EncoderConfig

# Of fewer queries, a chunk's matrix products are too small to be fast.
_MIN_CHUNK = 64
# Measured: up to here, scoring all keys costs less than gathering the near ones.
_MAX_SPANS_DENSE = 1.5


def chunk_size(window: int) -> int:
    """The most queries of a chunk."""
    return max(window, _MIN_CHUNK)


def dense_limit(window: int) -> int:
    """The longest sequence that is one chunk, and so dense."""
    return int(_MAX_SPANS_DENSE * (chunk_size(window) + 2 * window))


def thresholds(config: EncoderConfig, kind: GraphKind) -> tuple[int, ...]:
    """The longest sequences in which every key is near, and which are one chunk."""
    if not config.local_layers:
        return ()
    window = config.local_window
    if _is_dense(kind):
        return (window + 1,)
    return (window + 1, dense_limit(window) if kind.is_exact else chunk_size(window))


def near_reach(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, all_keys: Reach, places: Places) -> Reach:
    """Of local layers: dense where their weights are given out, else in chunks. all_keys: of the other layers.

    In int8, both: a last bit of the sums would be rounded to another number, and the two graphs give the same ones.
    """
    dense = _dense(graph, config, kind, all_keys, places) if kind.has_attention else None
    if dense is not None and _is_dense(kind):
        return dense
    return replace(_in_chunks(graph, config, kind, all_keys, places), shown=dense)


def _is_dense(kind: GraphKind) -> bool:
    """What attention gives is computed by the weights that are given out."""
    return kind.has_attention and not kind.is_int8


def _dense(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, all_keys: Reach, places: Places) -> Reach:
    column = _column(graph, places.each, "dense.queries")
    near = _are_near(graph, column, places.each, config.local_window, "dense.near")  # [seq, seq]
    columns = graph.node("Mul", [all_keys.columns, _single(graph, near)], "dense.columns")  # [batch, 1, seq, seq]
    return replace(all_keys, columns=columns, bias=near_bias(graph, kind, columns, "dense.bias"))


def _in_chunks(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, all_keys: Reach, places: Places) -> Reach:
    count, chunk, pad = (_cut if kind.is_exact else _cut_alike)(graph, places, config.local_window)
    first = graph.node("Range", [whole(graph, 0), count, whole(graph, 1)], "chunks.numbers")
    first = _column(graph, graph.node("Mul", [first, chunk], "chunks.starts"), "chunks.first")  # [chunks, 1]
    queries = _run(graph, first, whole(graph, 0), chunk, "chunks.queries")  # [chunks, chunk]
    before = graph.node("Neg", [pad], "chunks.before")
    keys = _run(graph, first, before, graph.node("Add", [chunk, pad], "chunks.after"), "chunks.keys")  # [chunks, span]
    last = graph.node("Sub", [places.seq, whole(graph, 1)], "last_place")
    key_index = graph.node("Clip", [keys, whole(graph, 0), last], "chunks.key_index")
    columns = _columns(graph, (queries, keys, key_index), config.local_window)
    batch = graph.node("Shape", ["input_ids"], "batch_axis", start=0, end=1)
    joined = graph.node("Concat", [batch, graph.ints("rest_dim", -1, config.dim)], "to_joined", axis=0)
    return replace(
        all_keys,
        columns=columns,
        bias=near_bias(graph, kind, columns, "near.bias"),
        to_queries=_target(graph, config, kind, queries, "to_chunk_queries"),
        to_keys=_target(graph, config, kind, keys, "to_chunk_keys"),
        chunks=Chunks(graph.node("Min", [queries, last], "chunks.query_index"), key_index, joined),
    )


def _cut(graph: GraphBuilder, places: Places, window: int) -> tuple[str, str, str]:
    """How many chunks, how many queries each, and how many keys on either side of them."""
    one, size = whole(graph, 1), chunk_size(window)
    is_long = graph.node("Greater", [places.seq, whole(graph, dense_limit(window))], "is_long")
    count = graph.node("Add", [places.seq, whole(graph, size - 1)], "chunks.rounded")
    count = graph.node("Div", [count, whole(graph, size)], "chunks.if_long")
    count = graph.node("Where", [is_long, count, one], "chunks.count")
    # As even as they can be: there are fewer positions beyond the end than chunks.
    chunk = graph.node("Add", [places.seq, graph.node("Sub", [count, one], "chunks.others")], "chunk.rounded")
    chunk = graph.node("Div", [chunk, count], "chunk")
    return count, chunk, graph.node("Where", [is_long, whole(graph, window), whole(graph, 0)], "pad")


def _cut_alike(graph: GraphBuilder, places: Places, window: int) -> tuple[str, str, str]:
    """The same, of chunks that begin at the same positions whatever the sequence's length.

    Sums over other chunks differ in their last bits, which a coarser type rounds to other numbers: there, padding must
    not change where a chunk ends.
    """
    size = whole(graph, chunk_size(window))
    count = graph.node("Add", [places.seq, whole(graph, chunk_size(window) - 1)], "chunks.rounded")
    return graph.node("Div", [count, size], "chunks.count"), size, whole(graph, window)


def _columns(graph: GraphBuilder, positions: tuple[str, str, str], window: int) -> str:
    """positions: of queries, of keys, and of keys with those beyond the sequence brought into it.

    -> 1 where a query may attend, `[batch · chunks, 1, chunk, span]` float32
    """
    queries, keys, key_index = positions
    row = graph.node("Unsqueeze", [keys, graph.ints("axis_1", 1)], "chunks.keys.row")  # [chunks, 1, span]
    column = graph.node("Unsqueeze", [queries, graph.ints("axis_2", 2)], "chunks.queries.column")
    near = _are_near(graph, column, row, window, "near")  # [chunks, chunk, span]
    inside = graph.node("Equal", [keys, key_index], "chunks.inside")
    inside = graph.node("Unsqueeze", [inside, graph.ints("axis_1", 1)], "chunks.inside.row")
    near = _single(graph, graph.node("And", [near, inside], "chunks.near"))
    kept = graph.node("Gather", ["attention_mask", key_index], "chunks.mask", axis=1)  # [batch, chunks, span]
    kept = graph.node("Cast", [kept], "chunks.kept", to=TensorProto.FLOAT)
    kept = graph.node("Unsqueeze", [kept, graph.ints("axis_2", 2)], "chunks.kept.row")
    kept = graph.node("Mul", [kept, near], "chunks.columns")  # [batch, chunks, chunk, span]
    shape = graph.node("Shape", [near], "chunks.sizes", start=1)
    shape = graph.node("Concat", [graph.ints("rest_one", -1, 1), shape], "to_columns", axis=0)
    return graph.node("Reshape", [kept, shape], "near.columns")


def _target(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, positions: str, name: str) -> str:
    """positions: `[chunks, n]` -> the target shape `[batch · chunks, n, heads, head_dim]`, or `[…, dim]` to be fused"""
    size = graph.node("Shape", [positions], f"{name}.size", start=1)
    ends = (config.dim,) if kind.is_fused else (config.num_heads, config.head_dim)
    return graph.node("Concat", [graph.ints("rest", -1), size, graph.ints("head_axes", *ends)], name, axis=0)


def _are_near(graph: GraphBuilder, queries: str, keys: str, window: int, name: str) -> str:
    apart = graph.node("Abs", [graph.node("Sub", [queries, keys], f"{name}.offsets")], f"{name}.distances")
    return graph.node("LessOrEqual", [apart, whole(graph, window)], name)


def _run(graph: GraphBuilder, first: str, start: str, end: str, name: str) -> str:
    """first: `[chunks, 1]` -> from it plus start up to it plus end, `[chunks, end - start]`"""
    return graph.node("Add", [first, graph.node("Range", [start, end, whole(graph, 1)], f"{name}.run")], name)


def _column(graph: GraphBuilder, values: str, name: str) -> str:
    return graph.node("Unsqueeze", [values, graph.ints("axis_1", 1)], name)


def _single(graph: GraphBuilder, flags: str) -> str:
    return graph.node("Cast", [flags], f"{flags}.single", to=TensorProto.FLOAT)
