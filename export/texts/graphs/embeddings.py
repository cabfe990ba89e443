"""Ids → the first hidden states."""

from __future__ import annotations

from export.texts.graphs.parts import flat_table, layer_norm, linear
from export.texts.graphs.scope import Scope


def embeddings(scope: Scope) -> str:
    """Vectors of words, token types and positions, added, normalised and widened -> rows `[batch · seq, dim]`"""
    graph, config = scope.graph, scope.config
    total = graph.node("Gather", [graph.weight("embeddings.word.weight"), "input_ids"], "embeddings.words")
    if config.num_token_types:
        table = graph.weight("embeddings.token_type.weight")
        types = graph.node("Gather", [table, "token_type_ids"], "embeddings.types")
        total = graph.node("Add", [total, types], "embeddings.words_types")
    if config.positions == "learned":
        seq = graph.node("Shape", ["input_ids"], "seq", start=1, end=2)
        first = graph.ints("first_position", config.position_offset)
        end = graph.node("Add", [seq, first], "end_position")
        table = graph.weight("embeddings.position.weight")
        places = graph.node("Slice", [table, first, end, graph.ints("axis_0", 0)], "embeddings.positions")
        total = graph.node("Add", [total, places], "embeddings.sum")  # [batch, seq, table_dim]
    rows = layer_norm(scope, graph.node("Reshape", [total, flat_table(scope)], "embeddings.rows"), "embeddings.norm")
    return linear(scope, rows, "embeddings.project") if config.embedding_dim else rows
