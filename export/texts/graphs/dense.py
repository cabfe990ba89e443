"""Dense modules as graph nodes, over vectors of tokens or of texts; `models.heads.Dense` is the same in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from export.graph import GraphBuilder
from export.texts.graphs.heads import activate
from models.head_config import DenseConfig


def apply_dense(graph: GraphBuilder, modules: Sequence[DenseConfig], rows: str) -> str:
    """One after the other. rows: `[…, input_dim]` of the first -> `[…, output_dim]` of the last"""
    for index, module in enumerate(modules):
        name = f"dense.{index}"
        weights = [graph.weight(f"{name}.weight"), *([graph.weight(f"{name}.bias")] if module.has_bias else [])]
        found = graph.node("Gemm", [rows, *weights], name, transB=1)
        found = activate(graph, module.activation, found, f"{name}.activation")
        if module.has_residual_map:
            rows = graph.node("Gemm", [rows, graph.weight(f"{name}.residual.weight")], f"{name}.residual", transB=1)
        rows = graph.node("Add", [found, rows], f"{name}.sum") if module.has_residual else found
    return rows
