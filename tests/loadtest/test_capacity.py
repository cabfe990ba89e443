"""The search finds the capacity of any server that has one, in few steps."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.capacity import Capacity, Step, find_excess, search
from loadtest.errors import BadReply
from loadtest.recorder import Recorder, Waiting
from loadtest.samples import Figures, Sample, figures
from tests.loadtest.command import finish, loadtest, start_loadtest, write_limits
from tests.loadtest.stub import Reply, Stub, serving

TARGETS_MS = {"short": 400.0, "list32": 3000.0}


@given(st.integers(0, 600), st.integers(1, 512))
def test_the_capacity_is_found_within_a_tenth(true: int, most: int) -> None:
    tried: list[int] = []

    def is_within(users: int) -> bool:
        tried.append(users)
        return users <= true

    found = search(is_within, most=most)
    best = min(true, most)
    assert best - max(1, best // 10) < found <= best
    assert len(tried) == len(set(tried)) <= 16
    assert max(tried) <= most


def test_small_numbers_are_exact() -> None:
    assert [search(lambda users: users <= true, most=100) for true in range(11)] == list(range(11))  # noqa: B023


STEP = Step(8, 3, 10, 16.0, {"short": 50.0, "list32": 900.0}, (), 2.0, None)
FIGURES = Figures(
    num_replies=160, num_faults=0, num_wrong=0, per_s=16.0, mean_ms=40, p50_ms=30, p95_ms=50, p99_ms=60, max_ms=70
)


def excess(step: Step, total: Figures) -> str | None:
    return find_excess(step, total, wait_s=0.45, targets_ms=TARGETS_MS, max_lateness_ms=25)


def test_a_step_within_all_targets_has_no_excess() -> None:
    assert excess(STEP, FIGURES) is None


@pytest.mark.parametrize(
    ("step", "total", "reason"),
    [
        (STEP, replace(FIGURES, num_replies=0), "there was no right reply"),
        (STEP, replace(FIGURES, num_faults=3), "3 of 160 replies failed"),
        (replace(STEP, p95_ms={"short": 1e5}), FIGURES, "short: the 95th percentile was 100000 ms"),
        (replace(STEP, unanswered=("list32",)), FIGURES, "list32: requests waited, and none got a right reply"),
        (replace(STEP, lateness_ms=26.0), FIGURES, "the load generator was 26 ms late"),
        # Nearly all requests still wait for a reply: those that came were quick, but far too few.
        (replace(STEP, per_s=0.5), replace(FIGURES, per_s=0.5), "requests took 15550 ms on average"),
    ],
)
def test_excess_is_told(step: Step, total: Figures, reason: str) -> None:
    assert str(excess(step, total)).startswith(reason)


def test_the_bound_is_the_reason_of_the_lowest_number_that_was_too_many() -> None:
    hiccup = replace(STEP, per_s=1.0, excess="a hiccup, the second try was within the targets")
    steps = (hiccup, STEP, replace(STEP, users=16, excess="late"), replace(STEP, users=12, excess="failed"))
    assert Capacity(8, 100, steps).bound == "failed"
    assert Capacity(8, 8, (STEP,)).bound == "no more than 8 users were tried"
    assert (Capacity(8, 100, steps).per_s, Capacity(0, 100, steps).per_s) == (16.0, 0.0)


@pytest.mark.slow
def test_requests_that_still_wait_count_as_slow(tmp_path: Path) -> None:
    """One reply in twelve is a second late: among those that come in time there are too few of them to be seen."""

    def slow_now_and_then(reply: Reply, stub: Stub) -> Reply:
        return replace(reply, late_s=1) if len(stub.bodies) % 12 == 0 else reply

    limits = write_limits(tmp_path / "limits.toml", 500, max_lateness_ms=1_000)
    load = ("--kinds", "short", "--wait", "0.03", "--shape", "capacity", "--users", "4", "--step-s", "2")
    with serving(Stub(fault=slow_now_and_then, num_right=8)) as url:
        process = start_loadtest(tmp_path, "--url", url, *load, "--thresholds", str(limits))
        assert process.stdout is not None
        tries = list(islice((line for line in process.stdout if " 4 users · " in line), 2))
        process.terminate()
        finish(process, tmp_path)
    assert len(tries) == 2
    assert all(" · short: the 95th percentile was " in line for line in tries)


@pytest.mark.slow
def test_a_kind_that_is_never_answered_is_above_every_target(tmp_path: Path) -> None:
    def hang(reply: Reply, stub: Stub) -> Reply:
        return replace(reply, late_s=60) if stub.paths[-1] == "/v1/encode" else reply

    limits = write_limits(tmp_path / "limits.toml", 1_000, max_lateness_ms=1_000)
    load = ("--kinds", "short,attention", "--wait", "0.01", "--shape", "capacity", "--users", "2", "--step-s", "1")
    with serving(Stub(fault=hang, num_right=16, has_attention=True)) as url:
        done = loadtest(tmp_path, "--url", url, *load, "--timeout", "6", "--thresholds", str(limits))
    assert done.code == 1, done.output
    assert done.result is not None
    assert done.result["capacity"]["users"] == 0
    assert re.search(r"✘ attention: none of \d+ replies was right\.", done.output)


def test_what_still_waits_is_known_by_its_time_of_sending() -> None:
    clock_s = [100.0]
    recorder = Recorder(lambda: clock_s[0])
    with recorder.sending("short"):
        clock_s[0] = 102
        with recorder.sending("list32"):
            clock_s[0] = 102.5
            assert recorder.waiting(0, 9) == [Waiting("short", 0, 2500), Waiting("list32", 2, 500)]
            assert recorder.waiting(1, 9) == [Waiting("list32", 2, 500)]
            assert recorder.waiting(0, 2) == [Waiting("short", 0, 2500)]
    assert recorder.waiting(0, 9) == []
    with pytest.raises(BadReply), recorder.sending("short"):
        raise BadReply("any")
    assert recorder.waiting(0, 9) == []


def test_a_kind_is_unanswered_while_one_waits_that_was_sent_before_and_none_is_right() -> None:
    clock_s = [100.0]
    recorder = Recorder(lambda: clock_s[0])
    with recorder.sending("attention"):
        clock_s[0] = 105
        assert recorder.unanswered(2, 4) == ("attention",)
        recorder.samples.record(Sample("short", 1, 2_000))
        recorder.samples.record(Sample("list32", 1, 2_000, fault="no answer in time", is_overload=True))
        assert recorder.unanswered(2, 4) == ("attention", "list32")
        assert recorder.unanswered(3.5, 4) == ("attention",)
    recorder.samples.record(Sample("attention", 0, 5_000))
    assert recorder.unanswered(2, 4) == ("list32",)


def test_a_request_without_a_reply_counts_in_the_latencies_and_nowhere_else() -> None:
    samples = [Sample("short", 0, 10) for _ in range(18)] + [Sample("short", 0, 1, fault="status 429")]
    found = figures(samples, 2, [700, 900])
    assert (found.num_replies, found.num_faults, found.num_right, found.per_s) == (19, 1, 18, 9)
    assert (found.p50_ms, found.p95_ms, found.max_ms) == (10, 700, 900)
