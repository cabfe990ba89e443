"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.load import Watch
from loadtest.samples import Samples, figures

_LINE_INTERVAL_S = 10.0
_RECENT_S = 5.0


@contextmanager
def progress(console: Console, title: str, total_s: float | None) -> Iterator[Watch]:
    """Show how far a run is for the time of the block. total_s: how long it takes; None = not known."""
    if console.is_terminal:
        with _bar(console, title, total_s) as watch:
            yield watch
        return
    next_s = _LINE_INTERVAL_S

    def write_line(time_s: float, users: int, samples: Samples) -> None:
        nonlocal next_s
        if time_s >= next_s:
            next_s += _LINE_INTERVAL_S
            of = "" if total_s is None else f" of {total_s:.0f}"
            console.print(f"{title}: {time_s:.0f}{of} s, {_now(time_s, users, samples)}")

    yield write_line


@contextmanager
def _bar(console: Console, title: str, total_s: float | None) -> Iterator[Watch]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[now]}"))
    # Drawn by `watch` alone: a thread that draws would be one more user of this process's time.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(title, total=total_s, now="")

        def watch(time_s: float, users: int, samples: Samples) -> None:
            bar.update(task, completed=time_s, now=_now(time_s, users, samples), refresh=True)

        yield watch


def _now(time_s: float, users: int, samples: Samples) -> str:
    recent = figures(samples.since(time_s - _RECENT_S), min(_RECENT_S, time_s))
    failed = f", {samples.num_faults} failed" if samples.num_faults else ""
    return f"{users} users, {recent.per_s:.1f} by s, p95 {recent.p95_ms:.0f} ms{failed}"
