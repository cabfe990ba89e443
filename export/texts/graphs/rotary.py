"""Rotary positions as nodes: what `models.rotary` does in PyTorch, by the operator that ONNX has for it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from export.graph import GraphBuilder
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.reach import Places
from models.config import EncoderConfig
from models.frequencies import rotary_frequencies


def open_turns(
    graph: GraphBuilder, config: EncoderConfig, kind: GraphKind, places: Places, *, is_local: bool
) -> tuple[str, str] | None:
    """Cosines and sines by which each position is turned, `[seq, head_dim / 2]`; None without rotary positions."""
    if config.positions != "rotary":
        return None
    name, base = ("local_rotary", config.local_rotary_base) if is_local else ("rotary", config.rotary_base)
    frequencies = np.array(rotary_frequencies(config.head_dim, base), dtype=np.float32)
    column = graph.node("Unsqueeze", [places.each, graph.ints("axis_1", 1)], f"{name}.places")  # [seq, 1]
    column = graph.node("Cast", [column], f"{name}.places.single", to=TensorProto.FLOAT)
    angles = graph.node("Mul", [column, graph.constant(f"{name}.frequencies", frequencies)], f"{name}.angles")
    cosines = graph.node("Cos", [angles], f"{name}.cosines.single")
    sines = graph.node("Sin", [angles], f"{name}.sines.single")
    return (
        graph.node("Cast", [cosines], f"{name}.cosines", to=kind.dtype),
        graph.node("Cast", [sines], f"{name}.sines", to=kind.dtype),
    )
