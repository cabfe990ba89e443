"""`qkv parity`: a bundle's graphs under ONNX Runtime against its probes and the PyTorch model over the same weights.

PyTorch reads the bundle's own weights file, so it agrees with the graphs whatever that file holds: the stored probes
are what ties the file to the weights that were proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from qkv.report import console, gate_table, stages
from service.bundle import Bundle, open_bundle
from service.errors import StartupError
from service.manifest import PROBES, WEIGHTS, Manifest, TensorManifest, TextManifest
from service.runners.base import Runner
from service.runners.runtimes import check_runtimes


def prove(path: Path, *, form: Literal["quick", "full"], module: str | None = None) -> bool:
    """Run the stored probes and the battery; print the worst case of each gate. -> whether every gate passed

    module: the class that a bundle was made of, which is not in it; it gets the bundle's weights.
    Raises StartupError for a bundle that is not whole, and without ONNX Runtime or torch; ExportError for a class that
    does not fit.
    """
    check_runtimes()
    bundle = open_bundle(path)
    if find_spec("torch") is None:
        raise StartupError(
            "parity compares with PyTorch, which is not installed here: pip install torch beside qkv, "
            "or use the development environment .venv-dev, which has it"
        )

    from service.parity.battery import Runners, run_battery
    from service.parity.probes import check_probes, load_probes
    from service.runners.ort import OrtRunner

    with _open_reference(bundle, module) as reference, stages(console(is_stderr=True)) as progress:
        runners = Runners(subject=OrtRunner.open(bundle), reference=reference)
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


@contextmanager
def _open_reference(bundle: Bundle[Manifest], module: str | None) -> Iterator[Runner]:
    from service.runners.torch import open_reference

    if module is not None:
        with _open_module(bundle, module) as reference:
            yield reference
        return
    manifest = bundle.manifest
    made_of = manifest.module.source if isinstance(manifest, TensorManifest) else manifest.file
    if made_of.endswith(".onnx") or (isinstance(manifest, TextManifest) and manifest.is_ready):
        raise StartupError(
            f"{manifest.name}: made of {made_of}: there is no PyTorch module to compare it "
            "with; its proof is in parity.json, and its probes are run whenever it is served"
        )
    try:
        yield open_reference(bundle)
    except ValueError as error:
        raise StartupError(f"{error}: give --module SOURCE") from None


@contextmanager
def _open_module(bundle: Bundle[Manifest], source: str) -> Iterator[Runner]:
    """A class with the arguments and the weights of a bundle."""
    from export.modules.module import fill_module
    from export.origin import read_origin
    from service.runners.torch import ModuleRunner

    manifest, origin = bundle.manifest, read_origin(source)
    if not isinstance(manifest, TensorManifest):
        raise StartupError(f"{manifest.name}: --module is for bundles of tensors, this one takes text")
    if origin.kind not in ("class", "preset"):
        raise StartupError(f"--module {source}: FILE.py:CLASS or PACKAGE.MODULE:CLASS is needed")
    with fill_module(origin, manifest.module.kwargs, bundle.file(WEIGHTS), manifest.precision) as module:
        yield ModuleRunner(manifest.graph("encode"), module)
