"""What a tensor bundle says of its rows holds in the batcher: which rows share a call, and that answers stay theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from service.bundle import open_bundle
from service.engine import batch
from service.engine.batch import Row
from service.engine.engine import Engine
from service.engine.policy import CallQueue
from service.engine.request import TensorRequest, TensorResult
from service.graph_spec import GraphSpec
from service.manifest import Batching
from service.runners.base import Array
from service.settings import Settings
from tests.fixtures.cross_bundle import make_cross_bundle, make_inputs, reference

NUM_REQUESTS = 40
# Few shapes, so that equal ones meet; some have the same length in tokens and are not equal.
SHAPES = ((3, 9), (9, 3), (6, 6), (7, 11))
Calls = list[list[tuple[int, int]]]


@asynccontextmanager
async def running(path: Path, batching: Batching) -> AsyncIterator[Engine]:
    bundle = open_bundle(make_cross_bundle(path / "cross", batching=batching).path)
    engine = Engine.start(bundle, Settings(num_threads=1))
    try:
        yield engine
    finally:
        await engine.close(5)


def noted(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The sizes of the rows of every call from here on."""
    calls: Calls = []
    collate = batch.collate

    def note(graph: GraphSpec, rows: Sequence[Row], *, pad_token_id: int) -> dict[str, Array]:
        calls.append([(row.sizes["query_seq"], row.sizes["key_seq"]) for row in rows])
        return collate(graph, rows, pad_token_id=pad_token_id)

    monkeypatch.setattr(batch, "collate", note)
    return calls


async def run_all(engine: Engine) -> list[tuple[dict[str, Array], TensorResult]]:
    rng = np.random.default_rng(0)
    requests = [
        make_inputs(int(rng.integers(1, 4)), *SHAPES[index % len(SHAPES)], seed=index) for index in range(NUM_REQUESTS)
    ]
    results = await asyncio.gather(*(engine.infer(TensorRequest(inputs)) for inputs in requests))
    return list(zip(requests, results, strict=True))


def check(answered: Sequence[tuple[dict[str, Array], TensorResult]]) -> None:
    for inputs, result in answered:
        expected = reference(inputs)
        for name in ("output", "unit"):
            found = np.stack([item.outputs[name] for item in result.items])
            np.testing.assert_allclose(found, expected[name], atol=1e-5)


async def test_padded_rows_of_any_sizes_share_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, "padded") as engine:
        calls = noted(monkeypatch)
        check(await run_all(engine))
    assert any(len(set(call)) > 1 for call in calls)


async def test_rows_of_equal_shapes_share_calls_with_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, "equal_shapes") as engine:
        calls = noted(monkeypatch)
        check(await run_all(engine))
    assert [call for call in calls if len(set(call)) > 1] == []
    assert max(map(len, calls)) > 3, "no call mixed requests"


async def test_rows_that_stay_alone_run_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, "alone") as engine:
        calls = noted(monkeypatch)
        answered = await run_all(engine)
        check(answered)
    assert {len(call) for call in calls} == {1}
    assert len(calls) == sum(len(result.items) for _, result in answered)


@pytest.mark.parametrize("groups", [("a", "b"), (None, None), (None, "a")])
def test_rows_of_different_groups_wait_side_by_side(groups: tuple[str | None, str | None]) -> None:
    queue = CallQueue(1000)
    rows = [Row({}, {"seq": 5}, "encode", ("output",), "all", groups[index % 2]) for index in range(8)]
    queue.push(rows)
    calls = []
    while tickets := queue.take():
        calls.append([ticket.row for ticket in tickets])
    assert sorted(id(row) for call in calls for row in call) == sorted(map(id, rows))
    for call in calls:
        assert len({row.group for row in call}) == 1
        assert call[0].group is not None or len(call) == 1
