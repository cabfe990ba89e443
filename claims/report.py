"""What was measured, as JSON and as tables for people."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from claims import cost as costs
from claims import recall as recalls
from claims.cost import Cost
from claims.recall import MODELS, SCHEDULES, Recall


def describe_cost(cost: Cost) -> dict[str, Any]:
    """The claim on cost, as it stands in the JSON."""
    return _setup(costs) | {
        "milliseconds": cost.milliseconds,
        "growth": {name: cost.growth(name) for name in cost.milliseconds},
    }


def describe_recall(results: Sequence[Recall]) -> dict[str, Any]:
    """The claim on recall, as it stands in the JSON."""
    return _setup(recalls) | {"runs": [asdict(result) for result in results]}


def write(measured: dict[str, Any], folder: Path) -> None:
    """`claims.json` and `claims.md` in the folder. A claim that was not measured this time stays as it was.

    measured: the claims by name, `cost` and `recall`
    """
    file = folder / "claims.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known |= json.loads(json.dumps(measured))  # as if read: lengths and distances are words there
    file.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    tables = {"cost": _cost_table, "recall": _recall_table}
    (folder / "claims.md").write_text("\n".join(tables[name](known[name]) for name in tables if name in known))


def _setup(module: ModuleType) -> dict[str, Any]:
    """The constants that a claim was measured with, and the machine."""
    constants = {name.lower(): value for name, value in vars(module).items() if name.isupper() and name != "MODELS"}
    machine = {"processor": _processor(), "torch": torch.__version__}
    return {"setup": constants, "machine": machine}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor())


def _cost_table(claim: dict[str, Any]) -> str:
    setup, machine, by_name = claim["setup"], claim["machine"], claim["milliseconds"]
    return (
        "## Cost against length\n\n"
        f"Milliseconds of processor time for one pass over one row; width {setup['dim']}, {setup['num_heads']} heads, "
        f"fastest of {setup['num_rounds']} rounds in turn; one core of {machine['processor']}, "
        f"torch {machine['torch']}.\n\n"
        + _table(
            ["length", *by_name],
            [
                *(
                    [f"{length:,}", *(f"{by_name[name][str(length)]:.2f}" for name in by_name)]
                    for length in setup["lengths"]
                ),
                ["last doubling", *(f"× {claim['growth'][name]:.2f}" for name in by_name)],
            ],
        )
    )


def _recall_table(claim: dict[str, Any]) -> str:
    setup, runs = claim["setup"], claim["runs"]
    rows = []
    for schedule, title in SCHEDULES.items():
        for model in MODELS:
            mine = [run for run in runs if run["schedule"] == schedule and run["model"] == model]
            accuracy = [
                statistics.mean(run["accuracy"][str(distance)] for run in mine) for distance in setup["distances"]
            ]
            seconds = statistics.mean(run["train_s"] for run in mine)
            rows.append([title, model, *(f"{value:.2f}" for value in accuracy), f"{seconds:.0f}"])
    return (
        "## Recall of the first symbol against distance\n\n"
        f"Share of {setup['num_tested']:,} test sequences, mean of {len(setup['seeds'])} seeds; chance is "
        f"{1 / setup['num_symbols']:.3f}. Every model: width {setup['dim']}, {setup['num_updates']:,} updates of "
        f"{setup['batch']} sequences, the same ones, with up to {setup['max_trained']} distractors; Adam, learning "
        f"rate {setup['learning_rate']}. Seconds are processor time of training, one core of "
        f"{claim['machine']['processor']}.\n\n"
        + _table(["trained on", "model", *map(str, setup["distances"]), "seconds"], rows)
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))
