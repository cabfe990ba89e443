"""Readiness tells the truth: stuck calls, a failing model, and their end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from service.engine.engine import Engine
from service.engine.request import EncodeRequest, Text
from service.runners.base import Array, FakeRunner
from service.settings import Settings
from tests.fixtures.fakes import fake_bundle

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    def make(runner: FakeRunner, **settings: Any) -> Engine:
        return Engine(fake_bundle(tmp_path), Settings(**settings), runner=runner)

    return make


async def test_health_sees_a_stuck_call_and_its_end(make_engine: MakeEngine) -> None:
    release = threading.Event()

    def wait(inputs: Mapping[str, Array]) -> None:
        release.wait(5)

    engine = make_engine(FakeRunner(on_call=wait), stuck_after_s=1)
    assert engine.health().is_ready
    stuck = asyncio.create_task(engine.encode(EncodeRequest([Text("cat")])))
    await asyncio.sleep(1.2)
    health = engine.health()
    assert not health.is_ready
    assert health.reason is not None
    assert "1 s" in health.reason
    assert health.running_calls == 1
    release.set()
    await stuck
    assert engine.health().is_ready
    await engine.close(1)


async def test_the_canary_finds_a_model_that_fails_and_one_that_recovers(make_engine: MakeEngine) -> None:
    is_broken = True

    def on_call(inputs: Mapping[str, Array]) -> None:
        if is_broken:
            raise RuntimeError("the device is gone")

    engine = make_engine(FakeRunner(on_call=on_call), canary_interval_s=0.05)
    watch = asyncio.create_task(engine.watch())
    await _until(lambda: not engine.health().is_ready)
    assert "canary failed" in str(engine.health().reason)
    is_broken = False
    await _until(lambda: engine.health().is_ready)
    watch.cancel()
    await engine.close(1)


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


async def test_a_good_call_after_a_failed_canary_is_proof_of_life(make_engine: MakeEngine) -> None:
    is_broken = True

    def on_call(inputs: Mapping[str, Array]) -> None:
        if is_broken:
            raise RuntimeError("a hiccup")

    engine = make_engine(FakeRunner(on_call=on_call), canary_interval_s=0.2)
    watch = asyncio.create_task(engine.watch())
    await _until(lambda: not engine.health().is_ready)
    watch.cancel()
    is_broken = False
    await engine.encode(EncodeRequest([Text("cat")]))
    assert engine.health().is_ready
    await engine.close(1)
