"""`qkv parity`: a bundle's graphs under ONNX Runtime against its probes and the PyTorch encoder over the same weights.

PyTorch reads the bundle's own weights file, so it agrees with the graphs whatever that file holds: the stored probes
are what ties the file to the weights that were proved.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from qkv.report import console, gate_table, stages
from service.bundle import open_bundle
from service.errors import StartupError
from service.manifest import PROBES


def prove(path: Path, *, form: Literal["quick", "full"]) -> bool:
    """Run the stored probes and the battery; print the worst case of each gate. -> whether every gate passed

    Raises StartupError for a bundle that is not whole, and without torch.
    """
    bundle = open_bundle(path)
    if find_spec("torch") is None:
        raise StartupError(
            "parity compares with PyTorch, which is not installed here: pip install torch beside qkv, "
            "or use the development environment .venv-dev, which has it"
        )

    from service.parity.battery import Runners, run_battery
    from service.parity.probes import check_probes, load_probes
    from service.runners.ort import OrtRunner
    from service.runners.torch import open_reference

    try:
        reference = open_reference(bundle)
    except ValueError as error:
        raise StartupError(str(error)) from None
    runners = Runners(subject=OrtRunner.open(bundle), reference=reference)
    with stages(console(is_stderr=True)) as progress:
        battery = run_battery(
            bundle.manifest,
            runners,
            form=form,
            progress=lambda done, total: progress("comparing with PyTorch", done, total),
        )
    roles = [graph.role for graph in bundle.manifest.graphs]
    probes = check_probes(bundle.manifest, runners.subject, load_probes(bundle.file(PROBES)), roles=roles)
    out = console()
    for report in (probes, battery):
        out.print(gate_table(report))
    num_failed = len(probes.failures) + len(battery.failures)
    out.print(f"[red]{num_failed} gates failed[/]" if num_failed else "[green]proved[/]")
    return probes.passed and battery.passed
