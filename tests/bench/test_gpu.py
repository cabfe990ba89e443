"""Throughput by shape: real tokens, interleaved rounds, ratios within a round; the peer computes the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bench.gpu import PEER, Compute, Inputs, Shape, Speed, Timing, measure, open_peer, used_bytes
from service.bundle import open_text_bundle
from service.runners.base import Array
from service.runners.ort import OrtRunner


@dataclass
class Bench:
    """A clock that only the contenders move, and what they were called with."""

    now_s: float = 0.0
    calls: list[str] = field(default_factory=list)

    def contender(self, name: str, cost_s: float) -> Compute:
        def compute(inputs: Inputs) -> Array:
            assert inputs["input_ids"].shape == (2, 8)
            self.now_s += cost_s
            self.calls.append(name)
            return inputs["input_ids"]

        return compute

    def clock(self) -> float:
        return self.now_s


def test_tokens_by_second_and_ratios_come_from_the_windows() -> None:
    bench = Bench()
    contenders = {"ours": bench.contender("ours", 0.25), PEER: bench.contender(PEER, 0.5)}
    speed = measure(contenders, Shape(2, 8), Timing(3, 1.0, bench.clock), vocab_size=50)
    num_tokens = 8 + 6  # the second row has 0.75 of the first one's length
    assert speed.tokens_per_s == {"ours": [num_tokens * 4.0] * 3, PEER: [num_tokens * 2.0] * 3}
    assert speed.ratios == {"ours": 2.0, PEER: 1.0}
    assert speed.cell("ours") == "56 (2.00 ×)"


def test_rounds_are_interleaved_and_begin_with_another_contender() -> None:
    bench = Bench()
    contenders = {name: bench.contender(name, 1.0) for name in ("a", "b", "c")}
    measure(contenders, Shape(2, 8), Timing(2, 1.0, bench.clock), vocab_size=50)
    warm_up, rounds = bench.calls[:3], bench.calls[3:]
    assert warm_up == ["a", "b", "c"]
    assert rounds == ["a", "b", "c", "b", "c", "a"]


def test_the_ratio_is_the_median_of_the_rounds_and_not_of_the_speeds() -> None:
    speed = Speed(Shape(1, 1), {"ours": [10.0, 200.0, 30.0], PEER: [10.0, 100.0, 300.0]})
    assert speed.ratios["ours"] == 1.0
    alone = Speed(Shape(1, 1), {"ours": [10.0, 200.0, 30.0]})
    assert alone.ratios == {}
    assert alone.cell("ours") == "30"


@pytest.mark.parametrize(("batch", "seq", "lengths"), [(1, 16, [16]), (3, 8, [8, 7, 6]), (2, 1, [1, 1])])
def test_a_shape_is_ragged_and_padded_on_the_right(batch: int, seq: int, lengths: list[int]) -> None:
    inputs = Shape(batch, seq).inputs(50)
    assert all(values.shape == (batch, seq) and values.dtype == np.int64 for values in inputs.values())
    assert inputs["attention_mask"].sum(axis=1).tolist() == lengths
    assert (np.diff(inputs["attention_mask"], axis=1) <= 0).all()
    assert inputs["input_ids"].min() >= 0
    assert inputs["input_ids"].max() < 50


def test_the_peer_computes_what_the_bundle_does(tiny_models: Path, tiny_bundle: Path) -> None:
    bundle = open_text_bundle(tiny_bundle)
    inputs = Shape(3, 12).inputs(bundle.manifest.text.vocab_size)
    (expected,) = OrtRunner.open(bundle, num_threads=1).run("encode", inputs, ["pooled"])
    found = open_peer(tiny_models / "bert_mean", "cpu")(inputs)
    np.testing.assert_allclose(found, expected, atol=1e-2)


def test_memory_is_not_known_without_a_gpu() -> None:
    assert used_bytes("cpu") is None
