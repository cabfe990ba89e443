"""What commands print: consoles that squeeze no table into 80 columns when nobody watches, stages, gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from service.parity.report import ParityReport

_PIPED_WIDTH = 160


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
