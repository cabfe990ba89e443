"""Which keys the queries of a layer meet, and how they are turned: made once a call for all layers of a kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from export.graph import GraphBuilder
from export.texts.graphs.kind import GraphKind

_LOWEST = float(np.finfo(np.float32).min)
_FUSED_LOWEST = -float(2**15)


@dataclass(frozen=True, slots=True)
class Places:
    """Positions of a call. seq: how many there are, a scalar; each: 0, 1, 2, … `[seq]`."""

    seq: str
    each: str


@dataclass(frozen=True, slots=True)
class Chunks:
    """A sequence cut into runs of queries, each beside the keys around it.

    queries, keys: positions, by which tokens are gathered, `[chunks, chunk]` and `[chunks, span]`.
    to_joined: the target shape `[batch, chunks · chunk, dim]`, of which the first `seq` positions are the sequence.
    """

    queries: str
    keys: str
    to_joined: str


@dataclass(frozen=True, slots=True)
class Reach:
    """What the layers of one kind share.

    columns: 1 where a query may attend, 0 elsewhere, float32; `[batch, 1, 1, seq]`, or `[batch, 1, seq, seq]` where
    queries differ, or `[batch · chunks, 1, chunk, span]`. bias: what is added to the scores, as wide as the columns.
    to_queries, to_keys: target shapes of tokens cut into heads, `[batch, seq, heads, head_dim]`, of chunks `[batch ·
    chunks, chunk or span, heads, head_dim]`; for the fused operator, heads are not cut: dim is the last axis.
    turns: cosines and sines of rotary positions, `[seq, head_dim / 2]`; None = there are none.
    chunks: None = there is one, of the whole sequence.
    shown: by which the weights that are given out are computed; None = by those that the values are mixed by.
    """

    columns: str
    bias: str
    to_queries: str
    to_keys: str
    turns: tuple[str, str] | None = None
    chunks: Chunks | None = None
    shown: Reach | None = None


def open_places(graph: GraphBuilder) -> Places:
    """Append the nodes that make them."""
    seq = graph.node("Squeeze", [graph.node("Shape", ["input_ids"], "seq_axis", start=1, end=2)], "seq_scalar")
    return Places(seq, graph.node("Range", [whole(graph, 0), seq, whole(graph, 1)], "places"))


def whole(graph: GraphBuilder, value: int) -> str:
    """A whole number as a scalar."""
    return graph.constant(f"whole_{value}", np.array(value, dtype=np.int64))


def mask_bias(graph: GraphBuilder, kind: GraphKind, columns: str, name: str) -> str:
    """columns: as in `Reach` -> 0 where a query may attend, very low elsewhere, of the same shape, float32."""
    masked = graph.node("Sub", [graph.floats("one", 1.0), columns], f"{name}.masked")
    lowest = graph.floats("lowest", _FUSED_LOWEST if kind.is_fused else _LOWEST)
    return graph.node("Mul", [masked, lowest], name)


def near_bias(graph: GraphBuilder, kind: GraphKind, columns: str, name: str) -> str:
    """The bias of local layers, in the type that their attention takes."""
    bias = mask_bias(graph, kind, columns, name)
    return graph.node("Cast", [bias], f"{name}.half", to=TensorProto.FLOAT16) if kind.is_fused else bias
