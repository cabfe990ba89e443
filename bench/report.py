"""The table that people read and the file that machines read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from bench.results import Result, Round

RESULTS_DIR = Path(__file__).parent / "results"


def make_table(results: Sequence[Result]) -> Table:
    """One line a cell; floors stand beside what was reached."""
    table = Table(title="Requests by second, medians of interleaved rounds", title_justify="left")
    table.add_column("texts@clients")
    for heading in ("ceiling", "threads", "qkv", "share", "naive", "ratio", "p50 ms", "p99 ms", "generator"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.cell.name,
            _number(result.ceiling),
            result.layout,
            _number(result.ours),
            _mark(f"{result.share:.2f}", result.share, result.cell.min_share),
            _number(result.naive),
            _mark(f"{result.ratio:.1f} ×", result.ratio, result.cell.min_ratio),
            _number(result.p50_ms),
            _number(result.p99_ms),
            f"{result.generator_cores:.3f} cores",
        )
    return table


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _mark(text: str, value: float, floor: float | None) -> str:
    if floor is None:
        return text
    mark = "[green]✔[/]" if value >= floor else "[red]✘[/]"
    return f"{text} {mark} ≥ {floor:g}"


def write_results(
    machine: Mapping[str, str],
    servers: Mapping[str, float],
    rounds: Mapping[str, Sequence[Round]],
    results: Sequence[Result],
) -> Path:
    """Everything measured, as `bench/results/TIME.json`."""
    now = datetime.now(UTC)
    RESULTS_DIR.mkdir(exist_ok=True)
    file = RESULTS_DIR / f"{now:%Y%m%dT%H%M%SZ}.json"
    content = {
        "time": now.isoformat(timespec="seconds"),
        "machine": dict(machine),
        "servers": dict(servers),
        "results": [asdict(result) | {"faults": result.faults} for result in results],
        "rounds": {name: [asdict(turn) for turn in turns] for name, turns in rounds.items()},
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return file
