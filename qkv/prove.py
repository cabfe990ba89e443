"""`qkv parity`: a bundle's graphs under ONNX Runtime against its probes and the PyTorch encoder over the same weights.

PyTorch reads the bundle's own weights file, so it agrees with the graphs whatever that file holds: the stored probes
are what ties the file to the weights that were proved.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.progress import Progress

from qkv.report import console, gate_table
from service.bundle import PROBES, open_bundle
from service.errors import StartupError


def prove(path: Path, *, form: Literal["quick", "full"]) -> bool:
    """Run the stored probes and the battery; print the worst case of each gate. -> whether every gate passed

    Raises StartupError without torch, and for a bundle that is not whole.
    """
    if find_spec("torch") is None:
        raise StartupError("parity compares with PyTorch, which is not installed: pip install 'qkv[torch]'")
    bundle = open_bundle(path)

    from service.parity.battery import Runners, run_battery
    from service.parity.probes import check_probes, load_probes
    from service.runners.ort import OrtRunner
    from service.runners.torch import TorchRunner

    runners = Runners(subject=OrtRunner.open(bundle), reference=TorchRunner.open(bundle))
    with Progress(console=console(is_stderr=True), transient=True) as progress:
        task = progress.add_task("comparing with PyTorch")
        battery = run_battery(
            bundle.manifest,
            runners,
            form=form,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    roles = [graph.role for graph in bundle.manifest.graphs]
    probes = check_probes(bundle.manifest, runners.subject, load_probes(bundle.file(PROBES)), roles=roles)
    out = console()
    for report in (probes, battery):
        out.print(gate_table(report))
    num_failed = len(probes.failures) + len(battery.failures)
    out.print(f"[red]{num_failed} gates failed[/]" if num_failed else "[green]proved[/]")
    return probes.passed and battery.passed
