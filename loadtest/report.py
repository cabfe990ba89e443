"""What people read and what machines read: the plan, the progress, the table, the verdict, the files."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtest.capacity import Capacity, Step
from loadtest.errors import LoadTestError
from loadtest.samples import Figures, figures
from loadtest.shapes import Stage
from loadtest.texts import KINDS
from loadtest.thresholds import Thresholds
from loadtest.verdicts import Run, Verdict
from loadtest.work import WAIT_SPREAD, Work

RESULTS_DIR = Path(__file__).parent / "results"
ALL = "all"
_PLAIN_WIDTH = 160


def plain_or_terminal() -> Console:
    """A console that is wide enough for the tables where there is no terminal, and that prints in any encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def describe_plan(console: Console, work: Work, wait_s: float) -> None:
    """What will be sent, and the waits above all: without them no rate means anything."""
    options, total = work.options, sum(KINDS[kind].weight for kind in work.options.kinds)
    mixture = ", ".join(f"{kind} {KINDS[kind].weight / total:.0%}" for kind in options.kinds)
    num_known = sum(len(known.texts) for known in work.known.values())
    for line in (
        f"{work.target.url} · model {work.target.model}",
        f"requests: {mixture}",
        f"wait: {describe_wait(wait_s)}",
        f"{options.known_share:.0%} of the requests are compared with {num_known} known answers, learnt one by one",
    ):
        console.print(line, soft_wrap=True, highlight=False)


def describe_wait(wait_s: float) -> str:
    """What every user does between two requests, in words."""
    if not wait_s:
        return "none, every user sends its next request as soon as it has a reply"
    shortest_s, longest_s = (factor * wait_s for factor in WAIT_SPREAD)
    return f"every user waits {shortest_s:g} to {longest_s:g} s, on average {wait_s:g} s, after each reply"


def rows(run: Run) -> Iterator[tuple[Stage, str, Figures]]:
    """Figures of every judged stage, by kind and of all kinds together."""
    for stage in run.judged:
        for kind in (*run.kinds, None):
            samples = run.samples.between(stage.start_s, stage.end_s, kind)
            yield stage, kind or ALL, figures(samples, stage.end_s - stage.start_s)


def make_table(run: Run, limits: Thresholds) -> Table:
    """A line for each stage and kind; limits stand beside what was reached."""
    table = Table(title="Requests sent in the stages that count", title_justify="left")
    for heading in ("stage", "users", "kind"):
        table.add_column(heading)
    for heading in ("replies", "failed", "right by s", "mean ms", "p50 ms", "p95 ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage, kind, found in rows(run):
        failed = f"[red]{found.num_faults}[/]" if found.num_faults else "0"
        about = (stage.name, str(stage.users), kind, str(found.num_replies), failed, f"{found.per_s:.1f}")
        table.add_row(*about, *_times(kind, found, limits), end_section=kind == ALL)
    return table


def make_fault_table(run: Run) -> Table:
    """Every fault with its number and one example."""
    table = Table(title="Failed replies", title_justify="left")
    table.add_column("number", justify="right")
    for heading in ("kind", "reason", "for example"):
        table.add_column(heading)
    for (kind, reason), count in run.samples.faults.most_common():
        table.add_row(str(count), kind, escape(reason), escape(run.samples.details.get(reason, "")))
    return table


def print_verdict(console: Console, verdict: Verdict) -> None:
    """Each fault and each note on a line of its own."""
    for note in verdict.notes:
        console.print(f"[yellow]–[/] {escape(note)}", soft_wrap=True)
    for fault in verdict.faults:
        console.print(f"[red]✘[/] {escape(fault)}", soft_wrap=True)
    if not verdict.faults:
        console.print("[green]✔[/] every limit was kept", soft_wrap=True)


def describe_step(step: Step) -> str:
    """One step of the capacity search on a line."""
    latencies = ", ".join(f"{kind} {ms:.0f}" for kind, ms in step.p95_ms.items())
    mark = "[green]✔[/]" if step.excess is None else "[red]✘[/]"
    why = f" · {escape(step.excess)}" if step.excess else ""
    return f"{mark} {step.users} users · {step.per_s:.1f} right replies by s · p95 ms: {latencies}{why}"


def check_folder(parent: Path) -> None:
    """Make the folder for results. Raises LoadTestError when nothing can be written there."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise LoadTestError(f"--out {parent}: nothing can be written there: {error.strerror}") from None


def make_folder(parent: Path) -> Path:
    """A new folder named by the time."""
    now = datetime.now(UTC)
    for number in range(1, 100):
        folder = parent / (f"{now:%Y%m%dT%H%M%SZ}" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(folder)


def write_result(
    folder: Path, about: dict[str, Any], run: Run, verdict: Verdict, capacity: Capacity | None = None
) -> Path:
    """Everything measured, as `result.json`."""
    content = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
        "shape": run.shape,
        "faults": verdict.faults,
        "notes": verdict.notes,
        "num_replies": len(run.samples.taken),
        "num_failed": run.samples.num_faults,
        "failed": [
            {"kind": kind, "reason": reason, "number": count}
            for (kind, reason), count in run.samples.faults.most_common()
        ],
        "compared_share": run.samples.compared_share,
        "lateness_ms": run.lateness_ms,
        "memory_mib": run.memory_mib,
        "stages": [asdict(stage) for stage in run.stages],
        "gaps": [{"stage": stage.name, "gap_s": run.gap_s(stage)} for stage in run.judged],
        "figures": [{"stage": stage.name, "kind": kind, **asdict(found)} for stage, kind, found in rows(run)],
        "drifts": [asdict(drift) for stage in run.judged for drift in run.drifts(stage)],
        "capacity": None if capacity is None else asdict(capacity) | {"per_s": capacity.per_s, "bound": capacity.bound},
    }
    file = folder / "result.json"
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return file


def _times(kind: str, found: Figures, limits: Thresholds) -> tuple[str, ...]:
    plain = (found.mean_ms, found.p50_ms)
    limited = ((found.p95_ms, limits.p95_ms), (found.p99_ms, limits.p99_ms), (found.max_ms, limits.max_ms))
    if not found.num_right:
        return ("–",) * (len(plain) + len(limited))
    marks = (_mark(value, None if kind == ALL else limit.of(kind)) for value, limit in limited)
    return (*(f"{value:.1f}" for value in plain), *marks)


def _mark(value: float, limit: float | None) -> str:
    if limit is None:
        return f"{value:.1f}"
    return f"{value:.1f} {'[green]✔[/]' if value <= limit else '[red]✘[/]'} ≤ {limit:g}"
