"""A tensor bundle is warmed and kept alive by what it was proved with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from service.bundle import open_bundle
from service.engine import batch
from service.engine.batch import Row
from service.engine.engine import Engine
from service.errors import StartupError
from service.graph_spec import GraphSpec
from service.runners.base import Array
from service.settings import Settings
from tests.fixtures.cross_bundle import make_cross_bundle


async def test_a_module_without_an_answer_for_zeros_stays_ready(tmp_path: Path) -> None:
    bundle = open_bundle(make_cross_bundle(tmp_path / "cross").path)
    engine = Engine.start(bundle, Settings(num_threads=1, canary_interval_s=0.02))
    watch = asyncio.create_task(engine.watch())
    try:
        await asyncio.wait_for(_first_call(engine), 10)
        await asyncio.sleep(0.1)
        assert engine.health().reason is None
    finally:
        watch.cancel()
        await engine.close(5)


async def _first_call(engine: Engine) -> None:
    while engine.health().last_call_age_s is None and engine.health().is_ready:  # noqa: ASYNC110 - a worker's doing
        await asyncio.sleep(0.01)


def test_a_model_that_fails_on_its_own_probes_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(make_cross_bundle(tmp_path / "cross").path)
    collate = batch.collate

    def emptied(graph: GraphSpec, rows: Sequence[Row], *, pad_token_id: int) -> dict[str, Array]:
        inputs = collate(graph, rows, pad_token_id=pad_token_id)
        return inputs | {"query": np.zeros_like(inputs["query"])}

    monkeypatch.setattr(batch, "collate", emptied)
    with pytest.raises(StartupError, match="warming up failed: the model gave a value that is not finite"):
        Engine.start(bundle, Settings(num_threads=1))
