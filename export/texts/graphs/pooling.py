"""Pooling as graph nodes: token vectors → one vector a row, with the meaning that sentence-transformers gives each.

Every function takes `tokens` `[batch, seq, dim]` and `mask` `[batch, seq]` float32 (1 = counts) and gives
`[batch, dim]`. A row with nothing to pool gives zeros, but `cls`, which then takes the first column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from export.graph import GraphBuilder

# sentence-transformers clamps its denominators here.
_MIN_COUNT = 1e-9


def _weighted_sum(graph: GraphBuilder, tokens: str, weights: str, name: str) -> str:
    row = graph.node("Unsqueeze", [weights, graph.ints("axis_1", 1)], f"{name}.row")  # [batch, 1, seq]
    total = graph.node("MatMul", [row, tokens], f"{name}.total")  # [batch, 1, dim]
    return graph.node("Squeeze", [total, graph.ints("axis_1", 1)], f"{name}.sum")  # [batch, dim]


def _count(graph: GraphBuilder, weights: str, name: str) -> str:
    total = graph.node("ReduceSum", [weights, graph.ints("axis_1", 1)], f"{name}.count", keepdims=1)
    return graph.node("Max", [total, graph.floats("min_count", _MIN_COUNT)], f"{name}.divisor")  # [batch, 1]


def _mean(graph: GraphBuilder, tokens: str, mask: str, name: str) -> str:
    return graph.node("Div", [_weighted_sum(graph, tokens, mask, name), _count(graph, mask, name)], name)


def _mean_sqrt_len(graph: GraphBuilder, tokens: str, mask: str, name: str) -> str:
    root = graph.node("Sqrt", [_count(graph, mask, name)], f"{name}.root")
    return graph.node("Div", [_weighted_sum(graph, tokens, mask, name), root], name)


def _weighted_mean(graph: GraphBuilder, tokens: str, mask: str, name: str) -> str:
    ones = graph.node("Sub", [mask, mask], f"{name}.zeros")
    ones = graph.node("Add", [ones, graph.floats("one", 1.0)], f"{name}.ones")
    places = graph.node("CumSum", [ones, graph.constant("axis_1_scalar", np.array(1))], f"{name}.places")  # 1, 2, 3, …
    return _mean(graph, tokens, graph.node("Mul", [mask, places], f"{name}.weights"), name)


def _max(graph: GraphBuilder, tokens: str, mask: str, name: str) -> str:
    column = graph.node("Unsqueeze", [mask, graph.ints("axis_2", 2)], f"{name}.column")  # [batch, seq, 1]
    keep = graph.node("Cast", [column], f"{name}.keep", to=TensorProto.BOOL)
    kept = graph.node(
        "Where", [keep, tokens, graph.floats("pooling.lowest", float(np.finfo(np.float32).min))], f"{name}.kept"
    )
    largest = graph.node("ReduceMax", [kept, graph.ints("axis_1", 1)], f"{name}.largest", keepdims=0)
    return graph.node("Mul", [largest, _any(graph, mask, name)], name)


def _cls(graph: GraphBuilder, tokens: str, mask: str, name: str) -> str:
    first = graph.node("ArgMax", [mask], f"{name}.first", axis=1, keepdims=1)  # [batch, 1]
    return graph.node("GatherND", [tokens, first], name, batch_dims=1)


def _last_token(graph: GraphBuilder, tokens: str, mask: str, name: str) -> str:
    last = graph.node("ArgMax", [mask], f"{name}.last", axis=1, keepdims=1, select_last_index=1)
    found = graph.node("GatherND", [tokens, last], f"{name}.found", batch_dims=1)
    return graph.node("Mul", [found, _any(graph, mask, name)], name)


def _any(graph: GraphBuilder, mask: str, name: str) -> str:
    return graph.node("ReduceMax", [mask, graph.ints("axis_1", 1)], f"{name}.any", keepdims=1)  # [batch, 1]


# In the order and with the meaning of sentence-transformers; `models.pooling` is the same in PyTorch.
POOLING: Mapping[str, Callable[[GraphBuilder, str, str, str], str]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last_token,
}


def pool(graph: GraphBuilder, tokens: str, modes: Sequence[str], name: str) -> str:
    """Append `name` `[batch, len(modes) · dim]`: every mode over the positions where `pooling_mask` is 1. -> name"""
    mask = graph.node("Cast", ["pooling_mask"], "pooling.mask", to=TensorProto.FLOAT)  # [batch, seq]
    parts = [f"pooling.{index}.{mode}" for index, mode in enumerate(modes)]
    vectors = [POOLING[mode](graph, tokens, mask, part) for mode, part in zip(modes, parts, strict=True)]
    return graph.node("Concat", vectors, name, axis=-1)
