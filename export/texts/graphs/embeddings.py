"""Ids → the first hidden states."""

from __future__ import annotations

from export.texts.graphs.parts import flat, layer_norm
from export.texts.graphs.scope import Scope


def embeddings(scope: Scope) -> str:
    """Word, token-type and position vectors, added and normalised -> rows `[batch · seq, dim]`"""
    graph, config = scope.graph, scope.config
    words = graph.node("Gather", [graph.weight("embeddings.word.weight"), "input_ids"], "embeddings.words")
    types = graph.node("Gather", [graph.weight("embeddings.token_type.weight"), "token_type_ids"], "embeddings.types")
    seq = graph.node("Shape", ["input_ids"], "seq", start=1, end=2)
    first = graph.ints("first_position", config.position_offset)
    end = graph.node("Add", [seq, first], "end_position")
    table = graph.weight("embeddings.position.weight")
    places = graph.node("Slice", [table, first, end, graph.ints("axis_0", 0)], "embeddings.positions")  # [seq, dim]
    total = graph.node("Add", [graph.node("Add", [words, types], "embeddings.words_types"), places], "embeddings.sum")
    rows = graph.node("Reshape", [total, flat(scope)], "embeddings.rows")  # [batch · seq, dim]
    return layer_norm(scope, rows, "embeddings.norm")
