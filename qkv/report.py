"""What commands print: consoles that squeeze no table into 80 columns when nobody watches, stages, gates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from service.parity.report import ParityReport

_PIPED_WIDTH = 160
_TELL_EVERY_S = 30.0


def console(*, is_stderr: bool = False) -> Console:
    """Standard output (or error) as a rich console."""
    found = Console(stderr=is_stderr)
    return found if found.is_terminal else Console(stderr=is_stderr, width=_PIPED_WIDTH)


@contextmanager
def stages(out: Console) -> Iterator[Callable[[str, int, int], None]]:
    """What is being done: a bar on a terminal, elsewhere one line for each stage.

    Gives a function to call with (title, steps done, steps in all; 0 = not known).
    """
    if not out.is_terminal:
        seen: set[str] = set()

        def write(title: str, _done: int, total: int) -> None:
            if title not in seen:
                seen.add(title)
                out.print(f"{title}: {total} cases" if total else title, soft_wrap=True, markup=False)

        yield write
        return
    with Progress(console=out, transient=True) as progress:
        task = progress.add_task("", total=None)

        def draw(title: str, done: int, total: int) -> None:
            progress.update(task, description=title, completed=done, total=total or None)

        yield draw


@contextmanager
def texts_bar(out: Console, total: int, done: int) -> Iterator[Callable[[int], None]]:
    """How many texts are done: a bar on a terminal, elsewhere a line at the start and now and then.

    Gives a function to call with how many more are; any thread may.
    """
    if not out.is_terminal:
        yield _TextLines(out, total, done).advance
        return
    counts = TextColumn("{task.completed:,}/{task.total:,} texts")
    with Progress(counts, BarColumn(), _Rate(), TimeRemainingColumn(), console=out, transient=True) as progress:
        task = progress.add_task("", total=total, completed=done)
        yield lambda number: progress.advance(task, number)


class _Rate(ProgressColumn):
    """Texts by second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


class _TextLines:
    """Progress where nobody watches."""

    def __init__(self, out: Console, total: int, done: int) -> None:
        self._out = out
        self._total = total
        self._done = self._first = done
        self._lock = threading.Lock()
        self._started_s = self._told_s = monotonic()
        out.print(f"{total:,} texts" + (f", {done:,} of them are done" if done else ""), highlight=False)

    def advance(self, number: int) -> None:
        with self._lock:
            self._done += number
            now = monotonic()
            if now - self._told_s < _TELL_EVERY_S:
                return
            self._told_s = now
            rate = (self._done - self._first) / (now - self._started_s)
            words = f"{self._done:,} of {self._total:,} texts, {rate:,.0f}/s"
        self._out.print(words, highlight=False, soft_wrap=True)


def gate_table(report: ParityReport) -> Table:
    """One line a gate, with its worst case."""
    table = Table(title=f"{report.num_cases} cases ({report.form}) against {report.reference}", title_justify="left")
    table.add_column("gate")
    for heading in ("worst", "limit", "checks"):
        table.add_column(heading, justify="right")
    table.add_column("worst case")
    table.add_column("passed")
    for gate in report.gates:
        table.add_row(
            gate.name,
            "not finite" if gate.worst is None else f"{gate.worst:.1e}",
            f"{gate.limit:.1e}",
            str(gate.num_checks),
            Text(gate.case),
            "[green]✔[/]" if gate.passed else "[red]✘[/]",
        )
    return table
