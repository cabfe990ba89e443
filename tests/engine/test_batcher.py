"""Every admitted row gets its answer or its error: under load, failure, cancel, death of a worker and shutdown."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from service.engine.batch import Row
from service.engine.batcher import Batcher, Outcome, run_isolated
from service.engine.host import QueueBudget
from service.engine.policy import CallQueue
from service.errors import BackendError, NotReadyError, QueueFullError, RequestError
from service.graph_spec import Role


def rows(*values: int, length: int = 4) -> list[Row]:
    return [Row({"input_ids": np.full(length, value)}, {"seq": length}, "encode", ("pooled",)) for value in values]


def value(row: Row) -> int:
    return int(row.inputs["input_ids"][0])


def echo(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
    return [{"pooled": np.array([value(row)])} for row in batch]


@asynccontextmanager
async def batcher(
    compute: Callable[[Role, Sequence[Row], bool], list[Outcome]] = echo, *, is_repeatable: bool = False, **limits: int
) -> AsyncIterator[Batcher]:
    limits = {"num_workers": 2, "max_queue_tokens": 10_000, "max_call_tokens": 64} | limits
    budget = QueueBudget(limits.pop("max_queue_tokens"))
    made = Batcher(compute, name="fake", budget=budget, is_repeatable=is_repeatable, **limits)
    try:
        yield made
    finally:
        await made.close(timeout_s=1)


async def answers(made: Batcher, values: Sequence[int]) -> list[int]:
    results = await made.submit(rows(*values))
    return [int(result["pooled"][0]) for result in results]


async def test_each_job_gets_its_own_rows_in_order() -> None:
    async with batcher() as made:
        jobs = [list(range(start, start + size)) for start, size in ((0, 1), (10, 50), (100, 7), (200, 1))]
        assert await asyncio.gather(*(answers(made, job) for job in jobs)) == jobs
        assert made.num_tokens == 0
        assert made.num_running == 0


def calls_alone(waiting: Sequence[Row], max_call_tokens: int) -> list[list[int]]:
    """The calls that the policy makes of one request, where nothing else was ever asked and one worker is idle."""
    queue = CallQueue(max_call_tokens)
    queue.push(waiting)
    return [[value(ticket.row) for ticket in call] for call in iter(queue.take, [])]


@pytest.mark.parametrize("num_rows", [90, 300], ids=["few calls", "many calls"])
@pytest.mark.parametrize("num_before", range(6))
async def test_calls_of_a_repeatable_batcher_depend_on_the_rows_of_a_request_alone(
    num_before: int, num_rows: int
) -> None:
    pause = random.Random(num_before)
    calls: list[list[int]] = []

    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        assert not is_alone, "another session, whose bits may be others"
        calls.append([value(row) for row in batch])
        time.sleep(pause.random() / 200)
        return echo(role, batch, is_alone)

    first = [row for number in range(num_rows) for row in rows(number, length=4 + number * 7 % 9)]
    second = rows(*range(num_rows, num_rows + 20), length=5)
    async with batcher(compute, num_workers=3, max_call_tokens=256, is_repeatable=True) as made:
        for number in range(num_before):
            await answers(made, [number])
        calls.clear()
        results = await asyncio.gather(made.submit(first), made.submit(second))
    assert [int(result["pooled"][0]) for result in [*results[0], *results[1]]] == [*range(num_rows + 20)]
    assert sorted(calls) == sorted(calls_alone(first, 256) + calls_alone(second, 256))


async def test_a_failing_row_fails_its_own_job_only() -> None:
    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        if any(value(row) == 13 for row in batch):
            raise ValueError("boom")
        return echo(role, batch, is_alone)

    async with batcher(compute, num_workers=1) as made:
        for _ in range(20):
            jobs = [answers(made, [number]) for number in range(32)]
            outcomes = await asyncio.gather(*jobs, return_exceptions=True)
            assert isinstance(outcomes.pop(13), BackendError)
            assert outcomes == [[number] for number in range(32) if number != 13]


def test_halving_finds_the_failing_rows_among_good_ones() -> None:
    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        if any(value(row) in (2, 3) for row in batch):
            raise ValueError("boom")
        return echo(role, batch, is_alone)

    outcomes = run_isolated(compute, rows(0, 1, 2, 3, 4, 5, 6), is_alone=True)
    assert [isinstance(outcome, BackendError) for outcome in outcomes] == [
        False,
        False,
        True,
        True,
        False,
        False,
        False,
    ]


async def test_admission_is_atomic_and_says_when_to_come_back() -> None:
    release = threading.Event()

    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        release.wait(5)
        return echo(role, batch, is_alone)

    async with batcher(compute, max_queue_tokens=40) as made:
        first = asyncio.create_task(answers(made, [1, 2, 3, 4, 5]))
        await asyncio.sleep(0.05)
        assert made.num_tokens == 20
        with pytest.raises(
            QueueFullError, match="40 tokens allowed, 20 queued or running, 24 in this request"
        ) as error:
            await made.submit(rows(*range(6)))
        assert 1 <= error.value.retry_after_s <= 120
        assert made.num_tokens == 20
        second = asyncio.create_task(answers(made, [6, 7, 8, 9, 10]))
        await asyncio.sleep(0)
        release.set()
        assert await first == [1, 2, 3, 4, 5]
        assert await second == [6, 7, 8, 9, 10]


async def test_a_cancelled_job_frees_its_tokens_and_never_runs() -> None:
    release, ran = threading.Event(), list[int]()

    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        release.wait(5)
        ran.extend(map(value, batch))
        return echo(role, batch, is_alone)

    async with batcher(compute, num_workers=1) as made:
        blocking = asyncio.create_task(answers(made, [1]))
        await asyncio.sleep(0.05)
        leaving = asyncio.create_task(answers(made, list(range(100, 140))))
        staying = asyncio.create_task(answers(made, [2]))
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.sleep(0.05)
        assert made.num_tokens == 8
        release.set()
        assert await blocking == [1]
        assert await staying == [2]
    assert ran == [1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_that_dies_is_replaced_and_its_waiters_are_answered() -> None:
    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        if value(batch[0]) == 13:
            raise SystemExit("the thread is gone")
        return echo(role, batch, is_alone)

    async with batcher(compute, num_workers=1) as made:
        for _ in range(3):
            with pytest.raises(BackendError):
                await answers(made, [13])
            assert await answers(made, [1, 2]) == [1, 2]
        assert made.num_alive() == 1


async def test_close_finishes_what_was_admitted_and_refuses_the_rest() -> None:
    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        time.sleep(0.02)
        return echo(role, batch, is_alone)

    async with batcher(compute) as made:
        admitted = asyncio.create_task(answers(made, list(range(60))))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(made.close(timeout_s=5))
        await asyncio.sleep(0.01)
        with pytest.raises(NotReadyError):
            await made.submit(rows(1))
        assert await admitted == list(range(60))
        await closing


async def test_close_ends_the_waiters_of_a_hung_call() -> None:
    release = threading.Event()

    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        release.wait(10)
        return echo(role, batch, is_alone)

    async with batcher(compute, num_workers=1) as made:
        hung, waiting = (asyncio.create_task(answers(made, [number])) for number in (1, 2))
        await asyncio.sleep(0.05)
        assert made.longest_call_s() > 0.02
        await made.close(timeout_s=0.1)
        for task in (hung, waiting):
            with pytest.raises(NotReadyError):
                await task
        release.set()


async def test_a_lone_call_may_use_every_core_and_a_shared_queue_may_not() -> None:
    alone = []

    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        alone.append(is_alone)
        time.sleep(0.02)
        return echo(role, batch, is_alone)

    async with batcher(compute) as made:
        await answers(made, [1])
        assert alone == [True]
        await answers(made, list(range(80)))
        assert alone.count(False) >= len(alone) - 2


async def test_a_request_that_can_never_fit_is_refused_for_good() -> None:
    async with batcher(max_queue_tokens=10) as made:
        with pytest.raises(RequestError, match="10 tokens allowed in one request, got 12") as error:
            await made.submit(rows(1, 2, 3))
        assert error.value.code == "too_many_tokens"


def test_an_error_of_the_whole_call_is_not_searched_for_in_its_rows() -> None:
    calls = []

    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        calls.append(len(batch))
        raise BackendError("the graph is broken")

    assert len(run_isolated(compute, rows(1, 2, 3, 4), is_alone=True)) == 4
    assert calls == [4]


async def test_a_call_that_answers_too_few_rows_ends_all_of_them_with_an_error() -> None:
    def compute(role: Role, batch: Sequence[Row], is_alone: bool) -> list[Outcome]:
        return (
            echo(role, batch, is_alone)[1:] if any(value(row) == 13 for row in batch) else echo(role, batch, is_alone)
        )

    async with batcher(compute, num_workers=1) as made:
        with pytest.raises(BackendError):
            await asyncio.wait_for(answers(made, [13, 14]), 5)
        assert await answers(made, [1, 2]) == [1, 2]
        assert made.num_tokens == 0


async def test_no_rows_are_answered_at_once() -> None:
    async with batcher() as made:
        assert await asyncio.wait_for(made.submit([]), 1) == []
