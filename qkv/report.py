"""What commands print: consoles that squeeze no table into 80 columns when nobody watches, and the table of gates."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.parity.report import ParityReport

_PIPED_WIDTH = 160


def console(*, is_stderr: bool = False) -> Console:
    """Standard output (or error) as a rich console."""
    found = Console(stderr=is_stderr)
    return found if found.is_terminal else Console(stderr=is_stderr, width=_PIPED_WIDTH)


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
