"""`qkv parity`: a bundle's graphs under ONNX Runtime against the PyTorch encoder over the same weights file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.progress import Progress

from qkv.report import console, gate_table
from service.bundle import open_bundle
from service.errors import StartupError


def prove(path: Path, *, form: Literal["quick", "full"]) -> bool:
    """Run the battery and print the worst case of each gate. -> whether every gate passed

    Raises StartupError without torch, and for a bundle that is not whole.
    """
    if find_spec("torch") is None:
        raise StartupError("parity compares with PyTorch, which is not installed: pip install 'qkv[torch]'")
    bundle = open_bundle(path)

    from service.parity.battery import Runners, run_battery
    from service.runners.ort import OrtRunner
    from service.runners.torch import TorchRunner

    runners = Runners(subject=OrtRunner.open(bundle), reference=TorchRunner.open(bundle))
    with Progress(console=console(is_stderr=True), transient=True) as progress:
        task = progress.add_task("comparing with PyTorch")
        report = run_battery(
            bundle.manifest,
            runners,
            form=form,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    out = console()
    out.print(gate_table(report))
    out.print("[green]proved[/]" if report.passed else f"[red]{len(report.failures)} gates failed[/]")
    return report.passed
