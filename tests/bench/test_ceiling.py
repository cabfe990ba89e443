"""The ceiling keeps as many requests in flight as it was asked to, and counts requests, not rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.ceiling import Ceiling, Layout, layouts

TEXTS = ["a cat", "the dog is on the river bank", "hello world", "music"]


@pytest.fixture(scope="module")
def ceiling(tiny_bundle: Path) -> Ceiling:
    return Ceiling(tiny_bundle)


@pytest.mark.parametrize("layout", layouts(), ids=str)
@pytest.mark.parametrize("clients", [1, 8])
def test_every_layout_runs(ceiling: Ceiling, layout: Layout, clients: int) -> None:
    requests = [ceiling.rows([text]) for text in TEXTS]
    assert ceiling.measure(layout, requests, clients=clients, window_s=0.1) > 0


def test_a_request_of_many_rows_counts_once(ceiling: Ceiling) -> None:
    layout, rows = layouts()[0], ceiling.rows(TEXTS * 16)
    single = ceiling.measure(layout, [[row] for row in rows], clients=1, window_s=0.3)
    many = ceiling.measure(layout, [rows], clients=1, window_s=0.3)
    assert many < single


def test_rows_are_tokenised_with_special_tokens(ceiling: Ceiling) -> None:
    (row,) = ceiling.rows(["hello world"])
    assert (row.length, row.inputs["input_ids"].shape) == (4, (4,))


def test_layouts_use_every_core() -> None:
    assert layouts(4) == [Layout(1, 4), Layout(4, 1), Layout(4, 4)]
    assert layouts(1) == [Layout(1, 1)]
