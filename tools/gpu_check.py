"""Check a GPU: is it right, where does each node run, and how fast is it beside PyTorch on the same card?

    python -m tools.gpu_check [--source MODEL] [--work DIR] [--out FILE]

Bundles of both precisions are built (or found) in DIR, compared with PyTorch in float32 on the CPU by the battery and
by their probes, and timed against PyTorch's own model in float16 with sdpa. Tables go to the screen, everything to
FILE. Exit code 1 when anything failed, or when a GPU is there and cannot be used; 0 on a machine without one.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from bench.gpu import PEER, Compute, Device, Inputs, Shape, Speed, Timing, measure, open_peer, used_bytes
from export.bundle import export_model
from export.progress import quiet
from export.texts.read.locate import locate, name_of
from qkv.report import console, gate_table, stages
from service.bundle import Bundle, open_text_bundle
from service.errors import StartupError
from service.graph_spec import Precision
from service.manifest import PROBES, TextManifest
from service.parity.battery import Runners, run_battery
from service.parity.probes import check_probes, load_probes
from service.parity.report import ParityReport
from service.runners.cuda import assignments, missing_cuda, missing_gpu
from service.runners.ort import CPU, CUDA, DEFAULT_CUDA, OrtRunner, open_session
from service.runners.runtimes import check_runtimes
from service.runners.torch import TorchRunner

BATCHES = (1, 8, 32)
LENGTHS = (16, 64, 128, 256)
RESULTS = Path("bench/results/gpu-check.json")
# Those that a GPU runs.
PRECISIONS: tuple[Precision, ...] = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is checked, and on what. source: a model directory or a published name; work: where its bundles are kept."""

    source: str
    work: Path
    device: Device
    batches: Sequence[int] = BATCHES
    lengths: Sequence[int] = LENGTHS
    timing: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class Findings:
    """All that was found.

    placement: graph → "provider: operator" → nodes. memory_bytes: what each contender took on the GPU, after a call of
    the largest shape; None = not known. notes: what could not be measured; faults: why the check failed.
    """

    reports: dict[str, ParityReport] = field(default_factory=dict)
    placement: dict[str, dict[str, int]] = field(default_factory=dict)
    memory_bytes: dict[str, int | None] = field(default_factory=dict)
    speeds: list[Speed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def check(plan: Plan) -> Findings:
    """Everything, on one device. A bundle that cannot run there is a fault, and the rest goes on."""
    findings, contenders = Findings(), {}
    bundles = [make_bundle(plan, precision) for precision in PRECISIONS]
    vocab_size = bundles[0].manifest.text.vocab_size
    largest = Shape(max(plan.batches), max(plan.lengths)).inputs(vocab_size)
    for bundle in bundles:
        precision = bundle.manifest.precision
        try:
            findings.placement |= place(bundle, plan.device)
            runner = OrtRunner.open(bundle, device=plan.device)
            findings.reports |= prove(bundle, runner)
            runner.close()
            contenders[f"qkv {precision}"] = _enter(findings, plan, largest, f"qkv {precision}", _opener(plan, bundle))
        except StartupError as error:
            findings.faults.append(f"{precision}: {error}")
    if plan.device == "cuda" and not torch.cuda.is_available():
        findings.notes.append("PyTorch here has no CUDA: nothing to compare the speed with")
    else:
        directory = locate(plan.source, quiet).path
        contenders[PEER] = _enter(findings, plan, largest, PEER, lambda: open_peer(directory, plan.device))
    for batch, seq in product(plan.batches, plan.lengths) if contenders else ():
        findings.speeds.append(measure(contenders, Shape(batch, seq), plan.timing, vocab_size=vocab_size))
    findings.faults += [
        f"{name}: {gate.name}: {gate.worst} over {gate.limit:g} in {gate.case}"
        for name, report in findings.reports.items()
        for gate in report.failures
    ]
    return findings


def _enter(findings: Findings, plan: Plan, largest: Inputs, name: str, opened: Callable[[], Compute]) -> Compute:
    before = used_bytes(plan.device)
    compute = opened()
    compute(largest)
    after = used_bytes(plan.device)
    findings.memory_bytes[name] = None if before is None or after is None else after - before
    return compute


def _opener(plan: Plan, bundle: Bundle[TextManifest]) -> Callable[[], Compute]:
    """One call as the service makes it: arrays in, vectors out, both on the host."""

    def opened() -> Compute:
        runner = OrtRunner.open(bundle, device=plan.device)
        return lambda inputs: runner.run("encode", inputs, ["pooled"], is_alone=True)[0]

    return opened


def make_bundle(plan: Plan, precision: Precision) -> Bundle[TextManifest]:
    """The source's bundle, built and proved on the CPU unless one is there that this version reads.

    Raises ExportError.
    """
    path = plan.work / precision
    try:
        return open_text_bundle(path)
    except StartupError:
        name = name_of(plan.source)
        with stages(console(is_stderr=True)) as progress:
            export_model(plan.source, path, name=name, precision=precision, force=path.exists(), progress=progress)
    return open_text_bundle(path)


def place(bundle: Bundle[TextManifest], device: Device) -> dict[str, dict[str, int]]:
    """How many nodes of each kind run where. Raises StartupError for a graph that does not open on the device."""
    provider, options = (CUDA, DEFAULT_CUDA.provider_options()) if device == "cuda" else (CPU, {})
    found = {}
    for graph in bundle.manifest.graphs:
        session = open_session(bundle.file(graph.file), 1, provider=provider, options=options)
        counts = Counter(f"{node.provider}: {node.op}" for node in assignments(session))
        found[f"{graph.precision} {graph.role}"] = dict(sorted(counts.items()))
    return found


def prove(bundle: Bundle[TextManifest], runner: OrtRunner) -> dict[str, ParityReport]:
    """The bundle's probes, and the quick battery against PyTorch in float32 on the CPU."""
    manifest = bundle.manifest
    roles = [graph.role for graph in manifest.graphs]
    return {
        f"{manifest.precision} probes": check_probes(manifest, runner, load_probes(bundle.file(PROBES)), roles=roles),
        f"{manifest.precision} battery": run_battery(manifest, Runners(runner, TorchRunner.open(bundle))),
    }


def tables(findings: Findings) -> Iterator[Table]:
    """What people read."""
    for name, report in findings.reports.items():
        table = gate_table(report)
        table.title = f"{name}: {table.title}"
        yield table
    placement = Table("graph", "provider: operator", "nodes", title="Where the nodes run", title_justify="left")
    for graph, counts in findings.placement.items():
        for where, count in counts.items():
            placement.add_row(graph, where, str(count))
    yield placement
    names = list(findings.memory_bytes)
    sizes = ["not known" if size is None else f"{size / 2**20:,.0f}" for size in findings.memory_bytes.values()]
    memory = Table(*names, title="GPU memory taken, MiB", title_justify="left")
    memory.add_row(*sizes)
    yield memory
    title = f"Tokens by second, medians of interleaved rounds (and the ratio to {PEER})"
    speeds = Table("batch", "length", *names, title=title, title_justify="left")
    for speed in findings.speeds:
        speeds.add_row(str(speed.shape.batch), str(speed.shape.seq), *map(speed.cell, names))
    yield speeds


def to_json(findings: Findings, device: Device) -> dict[str, Any]:
    """What machines read."""
    card = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else "not known"
    packages = {name: version(name) for name in ("torch", "transformers", "numpy", "onnx")}
    return {
        "machine": {"device": device, "card": card, "processor": platform.machine()} | packages,
        "parity": {name: report.model_dump(mode="json") for name, report in findings.reports.items()},
        "placement": findings.placement,
        "memory_bytes": findings.memory_bytes,
        "throughput": [asdict(speed) | {"ratios": speed.ratios} for speed in findings.speeds],
        "notes": findings.notes,
        "faults": findings.faults,
    }


def tell(findings: Findings, device: Device, file: Path) -> int:
    """Print and write. -> the exit code"""
    out = console()
    for table in tables(findings):
        out.print(table)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(to_json(findings, device), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for line in (*findings.notes, *findings.faults):
        out.print(Text(line), soft_wrap=True)
    out.print(f"{'failed' if findings.faults else 'passed'}; everything is in {file}", soft_wrap=True)
    return 1 if findings.faults else 0


def unusable() -> str | None:
    """Why the GPU that is there cannot be used: what is installed for it, or its driver."""
    try:
        check_runtimes()
    except StartupError as error:
        return str(error)
    return missing_cuda()


def main() -> int:
    """Parse the command line and check the first GPU, if there is one. -> the exit code"""
    parser = argparse.ArgumentParser(description="Check a GPU: parity, placement, memory, throughput.")
    parser.add_argument("--source", default="all-MiniLM-L6-v2", help="a model directory or a published model")
    parser.add_argument("--work", type=Path, default=Path("bundles/gpu-check"), help="where the bundles are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args()
    if (reason := missing_gpu()) is not None:
        console().print(f"no GPU here: {reason}; nothing was checked", soft_wrap=True)
        return 0
    if (reason := unusable()) is not None:
        console().print(f"the GPU cannot be used: {reason}", soft_wrap=True)
        return 1
    return tell(check(Plan(arguments.source, arguments.work, "cuda")), "cuda", arguments.out)


if __name__ == "__main__":
    sys.exit(main())
