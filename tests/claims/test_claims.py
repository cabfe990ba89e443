"""What the claims are measured with, and how numbers become tables and figures."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import torch

from claims import cost, figures, recall, report
from claims.cost import Cost
from claims.recall import MAX_TRAINED, MODELS, NUM_SYMBOLS, NUM_UPDATES, SCHEDULES, Recall

COST = Cost(
    {name: {length: length / divisor for length in cost.LENGTHS} for name, divisor in (("a", 1), ("b", 10), ("c", 100))}
)


def make_results() -> list[Recall]:
    """Of every model, schedule and seed: half right at each distance with the first seed, all right with the others."""
    return [
        Recall(*job, dict.fromkeys(recall.DISTANCES, 0.5 if job[2] == 0 else 1.0), train_s=2.0)
        for job in product(MODELS, SCHEDULES, recall.SEEDS)
    ]


def test_growth_is_that_of_the_last_doubling() -> None:
    assert Cost({"a": {1: 1.0, 2: 3.0, 4: 12.0}}).growth("a") == 4


def test_short_distances_come_first_only_where_said() -> None:
    assert {recall.longest(update, "mixed") for update in range(NUM_UPDATES)} == {MAX_TRAINED}
    ramp = [recall.longest(update, "ramp") for update in range(NUM_UPDATES)]
    assert ramp == sorted(ramp)
    assert (ramp[0], ramp[-1]) == (1, MAX_TRAINED)


@torch.inference_mode()
def test_every_model_scores_every_symbol() -> None:
    ids = torch.randint(NUM_SYMBOLS, (4, 9))
    for make in MODELS.values():
        assert make()(ids).shape == (4, NUM_SYMBOLS)


def test_a_claim_that_is_not_measured_stays_as_it_was(tmp_path: Path) -> None:
    report.write({"cost": report.describe_cost(COST)}, tmp_path)
    report.write({"recall": report.describe_recall(make_results())}, tmp_path)
    known = json.loads((tmp_path / "claims.json").read_text())
    assert known["cost"]["milliseconds"]["b"]["8192"] == 819.2
    text = (tmp_path / "claims.md").read_text()
    assert "| last doubling | × 2.00 | × 2.00 | × 2.00 |" in text
    mean = (0.5 + (len(recall.SEEDS) - 1)) / len(recall.SEEDS)
    for title, model in product(SCHEDULES.values(), MODELS):
        assert f"| {title} | {model} |{f' {mean:.2f} |' * len(recall.DISTANCES)} 2 |" in text


def test_figures_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        figures.draw_cost(COST, tmp_path / f"cost-{name}.png")
        figures.draw_recall(make_results(), tmp_path / f"recall-{name}.png")
    for name in ("cost", "recall"):
        first, second = ((tmp_path / f"{name}-{turn}.png").read_bytes() for turn in ("first", "second"))
        assert first.startswith(b"\x89PNG")
        assert first == second
