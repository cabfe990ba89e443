"""Buckets of relative positions: those of MPNet in `transformers`, at every distance, in PyTorch and in the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from models.buckets import NUM_BUCKETS, bucket, buckets_within
from models.relative import RelativeBias
from tests.encoders.references import REFERENCES, make_inputs, save


def test_every_distance_falls_into_the_bucket_of_transformers() -> None:
    reach = 4096
    encoder: Any = MPNetEncoder
    expected = encoder.relative_position_bucket(torch.arange(-reach, reach + 1))
    assert buckets_within(reach) == expected.tolist()


@given(distance=st.integers(-(2**40), 2**40), step=st.integers(1, 2**20))
def test_farther_is_never_nearer(distance: int, step: int) -> None:
    farther = distance + step if distance > 0 else distance - step
    assert 0 <= bucket(distance) <= bucket(farther) < NUM_BUCKETS
    assert bucket(abs(distance)) == bucket(-abs(distance)) + (NUM_BUCKETS // 2 if distance else 0)


def test_the_bias_is_of_the_key_less_the_query() -> None:
    bias = RelativeBias(40, 3)
    found = bias(100)
    assert found.shape == (3, 100, 100)
    for query, key in ((0, 0), (0, 99), (99, 0), (7, 12), (50, 3)):
        assert torch.equal(found[:, query, key], bias.weight[bucket(key - query)])


def test_the_bias_is_exact_in_the_graph_up_to_the_longest_input(tmp_path: Path) -> None:
    """With no words to look at, positions alone decide the weights; a wrong bucket would be plain."""
    model = REFERENCES["mpnet"].model(5, num_hidden_layers=1, max_position_embeddings=302)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".attn.q." in name or ".attn.k." in name:
                parameter.zero_()
    saved = save(model, tmp_path)
    assert saved.encoder.relative_bias is not None
    inputs = make_inputs(saved.config, "full", seq=300, seed=0)
    wanted = saved.encoder.relative_bias(300).softmax(dim=-1).detach().numpy()
    for found in (outputs for source, outputs in saved.run(inputs).items() if source != "encode"):
        np.testing.assert_allclose(found["attention.0"], np.broadcast_to(wanted, found["attention.0"].shape), atol=1e-6)
