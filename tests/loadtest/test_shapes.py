"""Shapes cover their time without a gap and end where they should."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.shapes import SHAPES, Stage, spike, steady, step, thirds


@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 500), st.floats(2, 10_000))
def test_stages_follow_each_other_to_the_end(name: str, users: int, duration_s: float) -> None:
    stages = SHAPES[name](users, duration_s)
    assert stages[0].start_s == 0
    assert stages[-1].end_s == pytest.approx(duration_s)
    for before, after in pairwise(stages):
        assert before.start_s < before.end_s == pytest.approx(after.start_s)
    assert max(stage.users for stage in stages) == users
    assert min(stage.users for stage in stages) >= 1
    assert any(stage.is_judged for stage in stages)
    assert not stages[0].is_judged


def test_each_stretch_that_counts_has_settled_before() -> None:
    assert steady(8, 100) == (Stage("settling", 0, 20, 8, is_judged=False), Stage("steady", 20, 100, 8))


def test_steps_rise_evenly() -> None:
    assert [stage.users for stage in step(10, 100) if stage.is_judged] == [2, 4, 6, 8, 10]
    assert [stage.users for stage in step(2, 100) if stage.is_judged] == [1, 2]


def test_a_spike_counts_before_and_after() -> None:
    stages = spike(20, 100)
    assert [(stage.name, stage.users) for stage in stages if stage.is_judged] == [("before", 5), ("after", 5)]
    assert [(stage.start_s, stage.end_s) for stage in stages if stage.users == 20] == [(40, 60)]


def test_thirds() -> None:
    assert thirds(Stage("any", 30, 90, 1)) == ((30, 50), (50, 70), (70, 90))
