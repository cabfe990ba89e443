"""`qkv export`: a source becomes a bundle, with its progress and its proof on the screen."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.text import Text

from qkv.report import console, gate_table, stages
from service.errors import StartupError, printable
from service.graph_spec import Precision
from service.manifest import Task
from service.runners.runtimes import check_runtimes


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What `qkv export` was asked.

    out: None = `bundles/NAME`. precision, task, file, via: None = not given. checkpoint, kwargs, signature: what goes
    with a class.
    """

    out: Path | None
    name: str | None
    precision: Precision | None
    goldens: Path | None
    unproved: bool
    force: bool
    checkpoint: Path | None = None
    kwargs: str | None = None
    signature: Path | None = None
    task: Task | None = None
    file: str | None = None
    via: Literal["torch"] | None = None
    trust_remote_code: bool = False


def build(source: str, options: BuildOptions) -> None:
    """Write the bundle; print its warnings and the worst case of each gate.

    Raises ExportError with every fault found, StartupError without ONNX Runtime and when the extra `export` is not
    installed.
    """
    check_runtimes()
    if find_spec("onnx") is None:
        raise StartupError("building a bundle needs the package onnx: pip install 'qkv[export]'")
    from export.bundle import export_model
    from export.modules.tensors import TensorOptions
    from export.origin import read_origin
    from export.texts.read.locate import name_of

    out = options.out or Path("bundles") / (options.name or read_origin(source).name or name_of(source))
    errors = console(is_stderr=True)
    with stages(errors) as progress:
        exported = export_model(
            source,
            out,
            name=options.name,
            precision=options.precision,
            task=options.task,
            file=options.file,
            via=options.via,
            trust_remote_code=options.trust_remote_code,
            goldens=options.goldens,
            unproved=options.unproved,
            force=options.force,
            options=TensorOptions(options.checkpoint, options.kwargs, options.signature),
            progress=progress,
        )
    for warning in exported.warnings:
        errors.print("[yellow]warning:[/]", Text(warning), soft_wrap=True)
    manifest, out_console = exported.manifest, console()
    out_console.print(gate_table(exported.report))
    words = f"{printable(manifest.name)}: {manifest.precision}, proof {manifest.proof.kind}, written to {exported.path}"
    out_console.print(words, soft_wrap=True)
