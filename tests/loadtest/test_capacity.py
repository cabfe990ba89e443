"""The search finds the capacity of any server that has one, in few steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.capacity import Capacity, Step, find_excess, search
from loadtest.samples import Figures

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


STEP = Step(8, 16.0, {"short": 50.0, "list32": 900.0}, 2.0, None)
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
