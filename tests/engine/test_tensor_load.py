"""Tensor requests that run together answer what each answers alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from service.bundle import open_bundle
from service.engine.engine import Engine
from service.engine.host import Host
from service.engine.request import TensorRequest, TensorResult
from service.metrics import NullObserver
from service.runners.base import Array
from service.settings import Settings
from tests.fixtures.tensor_bundle import MAX_SEQ, make_inputs, reference

OUTPUTS = ("output", "pooled", "num_kept", "kept", "doubled", "weights")


class _Calls(NullObserver):
    """Notes how many rows each call had, and how much of it was padding."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def call_finished(self, role: str, rows: int, real_tokens: int, padded_tokens: int, run_s: float) -> None:
        self.seen.append((rows, padded_tokens - real_tokens))


@pytest.fixture
def calls() -> _Calls:
    return _Calls()


@pytest.fixture
async def engine(tensor_bundle: Path, calls: _Calls) -> AsyncIterator[Engine]:
    # Two threads, so that both sessions take part: the one for a lone call and the one under load.
    settings = Settings(num_threads=2)
    opened = Engine.start(open_bundle(tensor_bundle), settings, host=Host.alone(settings, calls))
    yield opened
    await opened.close(5)


def stacked(result: TensorResult, name: str) -> Array:
    return np.stack([item.outputs[name] for item in result.items])


async def test_fifty_requests_of_mixed_lengths_equal_their_single_runs(engine: Engine, calls: _Calls) -> None:
    rng = np.random.default_rng(0)
    requests = [make_inputs(int(rng.integers(1, 4)), int(rng.integers(1, MAX_SEQ)), seed=index) for index in range(50)]

    async def infer(inputs: dict[str, Array]) -> TensorResult:
        return await engine.infer(TensorRequest(inputs, outputs=OUTPUTS))

    alone = [await infer(inputs) for inputs in requests]
    calls.seen.clear()
    together = await asyncio.gather(*map(infer, requests))
    assert max(rows for rows, _ in calls.seen) > 3, "no call mixed requests"
    assert any(padding for _, padding in calls.seen), "no call mixed lengths"
    worst = 0.0
    for inputs, one, other in zip(requests, alone, together, strict=True):
        expected = reference(inputs)
        for name in OUTPUTS:
            found = stacked(other, name)
            assert found.dtype == expected[name].dtype
            assert found.shape == expected[name].shape
            difference = np.abs(found.astype(np.float64) - stacked(one, name).astype(np.float64))
            worst = max(worst, float(difference.max()))
            np.testing.assert_allclose(found.astype(np.float64), expected[name].astype(np.float64), atol=1e-5)
    assert worst <= 1e-5


async def test_a_row_that_keeps_nothing_harms_no_neighbour(engine: Engine) -> None:
    inputs = make_inputs(3, 9)
    alone = await engine.infer(TensorRequest({name: values[:1] for name, values in inputs.items()}, outputs=OUTPUTS))
    inputs["mask"][1] = False
    together = await engine.infer(TensorRequest(inputs, outputs=OUTPUTS))
    np.testing.assert_allclose(stacked(together, "pooled")[0], stacked(alone, "pooled")[0], atol=1e-5)
    assert not stacked(together, "weights")[1].any()
    assert all(np.isfinite(stacked(together, name)).all() for name in OUTPUTS)
