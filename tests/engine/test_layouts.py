"""Weights in local layouts as dense matrices: the service's numpy against the family's own expansion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.layouts import Part, expand, own_shape
from service.graph_spec import LayoutSpec, TensorSpec
from tools.layouts import expand_part

LAYOUTS: dict[str, dict[str, Any]] = {
    "band": {"offset": -3},
    "strided": {"stride": 4},
    "block": {"block": 5},
    "summary": {"block": 5, "tail": 2},
    "global_keys": {"index": "g"},
    "global_queries": {"index": "g"},
}


def spec_of(kind: str) -> TensorSpec:
    last: dict[str, str | int] = {"band": 7, "strided": "num_strides", "block": 5, "summary": "num_summaries"}
    axes = {"global_keys": ("seq", "num_global"), "global_queries": ("num_global", "seq")}
    layout = LayoutSpec.model_validate({"kind": kind, **LAYOUTS[kind]})
    shape = ("batch", 2, *axes.get(kind, ("seq", last.get(kind, 0))))
    return TensorSpec(name="w", dtype="float32", axes=shape, meaning="attention", layout=layout)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(sorted(LAYOUTS)),
    seq=st.integers(1, 23),
    num_global=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_part_stands_for_the_same_matrix(kind: str, seq: int, num_global: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = spec_of(kind)
    index = np.full(num_global, -1)
    places = rng.permutation(seq)[:num_global]
    index[: len(places)] = places
    weights = rng.random(own_shape(spec, {"seq": seq, "num_global": num_global})).astype(np.float32)
    if kind == "global_keys":  # what stands for no position holds nothing
        weights[:, :, index < 0] = 0
    if kind == "global_queries":
        weights[:, index < 0] = 0
    declared = {"layout": kind, **LAYOUTS[kind]}
    expected = expand_part(declared, torch.from_numpy(weights)[None], {"g": torch.from_numpy(index)[None]})[0].numpy()
    found = expand([Part(spec.layout, weights, index)], seq, seq)
    np.testing.assert_array_equal(found, expected)


def test_parts_of_a_layer_are_added_up() -> None:
    block, summary = spec_of("block").layout, spec_of("summary").layout
    own, tails = np.ones((1, 6, 5), np.float32), np.zeros((1, 6, 4), np.float32)
    own[..., 3:] = 0
    tails[..., 0] = 2
    dense = expand([Part(block, own), Part(summary, tails)], 6, 6)
    np.testing.assert_array_equal(dense[0, 0], [1, 1, 1, 2, 0, 0])
    np.testing.assert_array_equal(dense[0, 5], [0, 0, 0, 2, 0, 1])


def test_an_axis_that_is_no_inputs_is_named() -> None:
    spec = TensorSpec(name="w", dtype="float32", axes=("batch", "chunks", 4), meaning="features")
    with pytest.raises(KeyError, match="w: axis chunks is no input's"):
        own_shape(spec, {"seq": 3})
