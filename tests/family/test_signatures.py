"""What a module declares is what its `forward` takes and gives."""

from __future__ import annotations

import inspect
from typing import cast

import pytest
import torch
from torch import nn

from models.attention import ScoredAttention, SingleHeadAttention
from models.multi_head import CrossAttention, MultiHeadAttention, SelfAttention
from models.registry import build_preset
from models.transformer import TokenTransformer, TransformerEncoder
from tests.fixtures.masks import Declared, random_inputs

SIZES = {"batch": 3, "seq": 5, "query_seq": 4, "key_seq": 7}


@pytest.mark.parametrize(
    "module",
    [
        SingleHeadAttention(12, 6, 5),
        ScoredAttention(6, 7, 5, score="additive", score_dim=9),
        MultiHeadAttention(12, 3, key_dim=7, value_dim=5),
        SelfAttention(12, 3),
        CrossAttention(12, 7, 3),
        TransformerEncoder(12, 3, 2, 16),
        TokenTransformer(50, 12, num_heads=3, num_layers=2, ffn_dim=16),
    ],
    ids=lambda module: type(module).__name__,
)
@torch.inference_mode()
def test_names_and_shapes(module: nn.Module) -> None:
    torch.manual_seed(0)
    signature = cast(Declared, module).signature()
    assert [*signature["inputs"]] == [*inspect.signature(module.forward).parameters]
    found = module(**random_inputs(signature, SIZES, "holes"))
    assert isinstance(found, tuple)
    expected = {name: [SIZES.get(axis, axis) for axis in spec["axes"]] for name, spec in signature["outputs"].items()}
    assert [[*tensor.shape] for tensor in found] == [*expected.values()]
    meanings = [spec.get("meaning") for spec in signature["outputs"].values()]
    assert meanings == [None] + ["attention"] * (len(found) - 1)
    layers = [spec.get("layer", 0) for spec in signature["outputs"].values()][1:]
    assert layers == [*range(len(layers))]


def test_mechanisms_that_cost_a_vector_a_pair_take_fewer_positions() -> None:
    names = ("additive", "seq2seq-attention", "dot")
    limits = {name: cast(Declared, build_preset(name)).signature().get("max_sizes") for name in names}
    assert limits == {
        "additive": {"query_seq": 512, "key_seq": 512},
        "seq2seq-attention": {"query_seq": 512, "key_seq": 512},
        "dot": None,
    }
