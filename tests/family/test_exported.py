"""Mechanisms as ONNX graphs: what ONNX Runtime computes equals the module, at sizes that the exporter never saw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from models.attention import ScoredAttention
from models.multi_head import CrossAttention, SelfAttention
from models.transformer import TokenTransformer
from tests.fixtures.graphs import MASKS, Graph, export_graph, random_inputs

torch.set_num_threads(1)

MODULES: dict[str, Callable[[], nn.Module]] = {
    "additive, top-k": lambda: ScoredAttention(6, 7, 5, score="additive", weighting="top_k", k=3, temperature=0.5),
    "bilinear, gumbel": lambda: ScoredAttention(6, 7, 5, score="bilinear", weighting="gumbel"),
    "causal self-attention": lambda: SelfAttention(12, 3, causal=True),
    "cross-attention": lambda: CrossAttention(12, 7, 3),
    "stack over tokens": lambda: TokenTransformer(50, 12, num_heads=3, num_layers=2, ffn_dim=16, norm="pre"),
}
BATCHES, LENGTHS = (1, 2, 3, 8), ((1, 1), (7, 1), (1, 5), (9, 17), (23, 13))


@pytest.fixture(scope="module", params=MODULES)
def graph(request: pytest.FixtureRequest) -> Graph:
    """Exported once for all tests."""
    torch.manual_seed(0)
    return export_graph(MODULES[request.param]())


def sizes_of(graph: Graph, batch: int, lengths: tuple[int, int]) -> dict[str, int]:
    sizes = {"batch": batch, "seq": lengths[1], "query_seq": lengths[0], "key_seq": lengths[1]}
    words = {axis for spec in graph.signature["inputs"].values() for axis in spec["axes"]}
    return {word: size for word, size in sizes.items() if word in words}


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_equals_the_module(graph: Graph, mask: str) -> None:
    for batch in BATCHES:
        for lengths in LENGTHS:
            graph.check(sizes_of(graph, batch, lengths), mask)


@pytest.mark.slow
def test_nothing_random_is_exported(graph: Graph) -> None:
    """The same inputs give the same bytes: no training form came along."""
    torch.manual_seed(1)
    inputs = random_inputs(graph.signature, sizes_of(graph, 2, (3, 4)), "holes")
    feeds = {name: tensor.numpy() for name, tensor in inputs.items()}
    for first, second in zip(graph.session.run(None, feeds), graph.session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(first, second)
