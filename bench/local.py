"""`python -m bench.local`: sliding-window attention beside full attention with the same projections; one table.

Both sides give the same outputs: the context alone, or the context and the weights, each in its own form. Every graph
and length has a process of its own; turns are interleaved, so that a busy neighbour disturbs all alike.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated

import onnx
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.export import Dim

from bench.servers import machine
from models.local import SlidingWindowAttention
from models.multi_head import MultiHeadAttention

SHORT, LONG = 4096, 8192
MAX_MEMORY_SHARE = 1 / 8
MAX_GROWTH = 2.6
LOCAL, FULL = "window", "full"
CONTEXT, WEIGHTS = "context", "context and weights"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Contender:
    """One graph at one length."""

    name: str
    seq: int


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds of each turn, and the most memory that calls took over the idle process."""

    seconds: list[float]
    peak_bytes: int

    @property
    def median_s(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the local side is to the full one, with the same outputs.

    memory_share: of the full side's memory at SHORT; growth: the local side's time at LONG over that at SHORT, the
    median of the turns' quotients.
    """

    memory_share: float
    growth: float

    @property
    def faults(self) -> list[str]:
        """Every bound that was missed."""
        faults = []
        if self.memory_share >= MAX_MEMORY_SHARE:
            faults.append(f"{self.memory_share:.3f} of full attention's memory, less than {MAX_MEMORY_SHARE} wanted")
        if self.growth > MAX_GROWTH:
            faults.append(f"time grows {self.growth:.2f} ×, at most {MAX_GROWTH} × wanted")
        return faults


def judge(found: Mapping[Contender, Found]) -> Verdict:
    """Compare. found: both contenders at both lengths."""
    short, long = found[Contender(LOCAL, SHORT)], found[Contender(LOCAL, LONG)]
    return Verdict(
        memory_share=short.peak_bytes / found[Contender(FULL, SHORT)].peak_bytes,
        growth=median(late / early for early, late in zip(short.seconds, long.seconds, strict=True)),
    )


class SelfAttention(nn.Module):
    """Full attention with the inputs of the local one."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, num_heads)

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """hidden: [batch, seq, dim], mask: [batch, seq] -> output, weights [batch, heads, seq, seq]."""
        output, weights = self.attention(hidden, hidden, hidden, mask)
        return output, weights


def write_graphs(directory: Path, dim: int, num_heads: int, window: int) -> dict[tuple[str, str], Path]:
    """The graphs of both sides, with and without weights: (side, outputs) → file."""
    local = SlidingWindowAttention(dim, num_heads, window).eval()
    full = SelfAttention(dim, num_heads).eval()
    full.attention.load_state_dict(local.state_dict())
    files = {}
    for name, module in ((LOCAL, local), (FULL, full)):
        model = _export(module, dim)
        for outputs in (WEIGHTS, CONTEXT):
            if outputs == CONTEXT:
                del model.graph.output[1:]  # ONNX Runtime drops what nothing needs
            files[name, outputs] = directory / f"{name}-{outputs.replace(' ', '-')}.onnx"
            onnx.save(model, files[name, outputs])
    return files


def _export(module: nn.Module, dim: int) -> onnx.ModelProto:
    axes = {0: Dim("batch"), 1: Dim("seq")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.onnx.export(
            module,
            kwargs={"hidden": torch.randn(2, 7, dim), "mask": torch.ones(2, 7, dtype=torch.bool)},
            dynamo=True,
            opset_version=20,
            dynamic_shapes={"hidden": axes, "mask": axes},
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def measure(graphs: Mapping[str, Path], *, turns: int, num_threads: int) -> dict[Contender, Found]:
    """Every graph at both lengths, in interleaved turns after one that is not counted."""
    contenders = [Contender(name, seq) for seq, name in product((SHORT, LONG), graphs)]
    found: dict[Contender, list[float]] = {contender: [] for contender in contenders}
    with _started(contenders, graphs, num_threads) as processes:
        for number in range(turns + 1):
            for contender, process in processes.items():
                seconds = _ask(process)
                if number:
                    found[contender].append(seconds)
        peaks = {contender: _finish(process) for contender, process in processes.items()}
    return {contender: Found(found[contender], peaks[contender]) for contender in contenders}


@contextmanager
def _started(
    contenders: Sequence[Contender], graphs: Mapping[str, Path], num_threads: int
) -> Iterator[dict[Contender, subprocess.Popen[str]]]:
    processes: dict[Contender, subprocess.Popen[str]] = {}
    try:
        for contender in contenders:
            arguments = (str(graphs[contender.name]), str(contender.seq), str(num_threads))
            processes[contender] = subprocess.Popen(
                [sys.executable, "-m", "bench.one_graph", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            _read(processes[contender])
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    print(file=process.stdin, flush=True)
    return float(_read(process))


def _finish(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    return int(_read(process))


def _read(process: subprocess.Popen[str]) -> str | float:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"{' '.join(map(str, process.args[2:]))} ended with code {process.wait()}")  # type: ignore[index]
    answer: str | float = json.loads(line)
    return answer


def make_table(found: Mapping[str, Mapping[Contender, Found]]) -> Table:
    """One line for each kind of outputs, side and length."""
    table = Table(title="One call, medians of interleaved turns; memory over the idle process", title_justify="left")
    for heading, justify in (("outputs", "left"), ("attention", "left"), ("seq", "right"), ("ms", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("MiB", justify="right")
    for outputs, by_contender in found.items():
        for contender, one in by_contender.items():
            row = (f"{contender.seq:,}", f"{one.median_s * 1000:,.0f}", f"{one.peak_bytes / _MIB:,.0f}")
            table.add_row(outputs, contender.name, *row)
    return table


def main(
    dim: Annotated[int, typer.Option(min=1, help="Width of the model.")] = 128,
    heads: Annotated[
        int, typer.Option(min=1, help="Full attention takes about 1 GiB a head at the longer length.")
    ] = 2,
    window: Annotated[int, typer.Option(min=1, help="Positions on each side that a query attends to.")] = 64,
    turns: Annotated[int, typer.Option(min=1, help="Interleaved turns; the table shows their medians.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of one call.")] = 1,
) -> None:
    """Measure sliding-window attention beside full attention at 4,096 and 8,192 positions, in one run.

    Exits with 1 when it is not local: 1/8 of the memory or more, or a time that grows more than 2.6 ×.
    """
    console = Console(width=None if Console().is_terminal else 140)
    with tempfile.TemporaryDirectory() as directory, console.status("exporting and measuring"):
        graphs = write_graphs(Path(directory), dim, heads, window)
        found = {
            outputs: measure({name: graphs[name, outputs] for name in (LOCAL, FULL)}, turns=turns, num_threads=threads)
            for outputs in (CONTEXT, WEIGHTS)
        }
    console.print(make_table(found))
    about = {"dim": dim, "heads": heads, "window": window, "turns": turns, "threads": threads} | machine()
    console.print(" · ".join(f"{name} {value}" for name, value in about.items()), soft_wrap=True)
    faults = 0
    for outputs, by_contender in found.items():
        verdict = judge(by_contender)
        console.print(
            f"{outputs}: {verdict.memory_share:.3f} of full attention's memory at {SHORT:,} positions; "
            f"time grows {verdict.growth:.2f} × to {LONG:,}",
            soft_wrap=True,
        )
        for fault in verdict.faults:
            console.print(f"[red]✘[/] {outputs}: {fault}", soft_wrap=True)
        faults += len(verdict.faults)
    if faults:
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app(prog_name="python -m bench.local")
