"""Medians, ratios and verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.cells import CELLS, Cell, find_cells
from bench.load import Load
from bench.report import make_table
from bench.results import Round, summarise

LOAD = Load(requests_per_s=100, p50_ms=10, p99_ms=20, num_requests=250, num_errors=0, generator_cores=0.02)
CELL = Cell("short", 32, min_share=0.65, min_ratio=8)


def turn(ours: float, naive: float, **ceilings: float) -> Round:
    return Round(ceilings, replace(LOAD, requests_per_s=ours), replace(LOAD, requests_per_s=naive))


def test_ratios_are_medians_of_ratios_within_a_round() -> None:
    result = summarise(CELL, [turn(80, 10, a=100, b=90), turn(40, 4, a=50, b=60), turn(90, 10, a=100, b=95)])
    assert result.layout == "a"
    assert result.share == pytest.approx(0.8)
    assert result.ratio == pytest.approx(9)
    assert (result.ceiling, result.ours, result.naive) == (100, 80, 10)
    assert result.faults == []


def test_the_ceiling_is_the_layout_with_the_best_median() -> None:
    result = summarise(CELL, [turn(80, 8, a=200, b=101), turn(80, 8, a=90, b=102), turn(80, 8, a=95, b=103)])
    assert (result.layout, result.ceiling) == ("b", 102)


def test_every_missed_floor_is_a_fault() -> None:
    faults = summarise(CELL, [turn(60, 10, a=100)]).faults
    assert faults == ["short@32: 0.60 of the ceiling, 0.65 wanted", "short@32: 6.0 × naive, 8 × wanted"]


def test_a_greedy_generator_and_bad_answers_are_faults() -> None:
    bad = Round({"a": 100}, replace(LOAD, generator_cores=0.2, num_errors=3), replace(LOAD, requests_per_s=1))
    faults = summarise(CELL, [bad]).faults
    assert faults == ["short@32: the load generator took 0.20 cores", "short@32: 3 answers were not 200"]


def test_the_table_marks_what_was_reached_and_what_was_not() -> None:
    results = [summarise(CELL, [turn(ours, 10, a=100)]) for ours in (90, 60)]
    shares = list(make_table(results).columns[4].cells)
    assert "✔" in str(shares[0])
    assert "✘" in str(shares[1])


def test_cells_have_names_of_their_own() -> None:
    assert find_cells(None) == list(CELLS)
    assert find_cells(["short@32", "mixedx32@1"]) == [CELLS[5], CELLS[-1]]
    with pytest.raises(ValueError, match="no cell named short@33; there are passage@1"):
        find_cells(["short@33"])
