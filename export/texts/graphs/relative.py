"""Relative position bias as nodes: made once a call, for every layer."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from export.graph import GraphBuilder
from export.texts.graphs.kind import GraphKind
from models.buckets import buckets_within
from models.config import EncoderConfig


def relative_bias(graph: GraphBuilder, config: EncoderConfig, kind: GraphKind) -> str:
    """What each head adds to the score of two positions -> `[heads, seq, seq]` float32

    Which row of the table a distance has is a constant: logarithms of other machines could round to another one.
    """
    reach = config.max_tokens - 1
    buckets = graph.constant("relative.buckets", np.array(buckets_within(reach), dtype=np.int64))
    biases = graph.node("Gather", [graph.weight("relative_bias.weight"), buckets], "relative.by_distance")
    if kind.is_half:
        biases = graph.node("Cast", [biases], "relative.single", to=TensorProto.FLOAT)
    biases = graph.node("Transpose", [biases], "relative.by_head", perm=[1, 0])  # [heads, 2 · reach + 1]
    seq = graph.node("Shape", ["input_ids"], "relative.shape", start=1, end=2)
    seq = graph.node("Squeeze", [seq], "relative.seq")
    zero, one = (graph.constant(f"{name}_scalar", np.array(value)) for name, value in (("zero", 0), ("one", 1)))
    keys = graph.node("Range", [zero, seq, one], "relative.keys")
    queries = graph.node("Unsqueeze", [keys, graph.ints("axis_1", 1)], "relative.queries")
    distances = graph.node("Sub", [keys, queries], "relative.distances")  # [seq, seq]
    places = graph.node("Add", [distances, graph.constant("relative.reach", np.array(reach))], "relative.places")
    return graph.node("Gather", [biases, places], "attention_bias.relative", axis=1)
