"""`export_model`: the one way in, for every kind of source. Two roads lead from it.

    texts     a model directory        its graphs are built from its shape and its weights, without torch
              its ready .onnx file     taken as it is, with pooling behind it, proved against PyTorch or by itself
              with `via`               loaded by transformers, traced by PyTorch and proved against the very model
    tensors   a preset, a class        traced by PyTorch and proved against the very module
              a ready .onnx file       taken as it is, proved to treat each row alike whatever is beside it

The same source, packages and machine give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from export.atomic import check_target
from export.errors import ExportError
from export.modules.tensors import TensorOptions, export_tensors
from export.origin import Origin, read_origin
from export.progress import Progress
from export.prove import ProofRequest
from export.seal import Exported, Target
from export.texts.directory import TextOptions, export_texts
from export.texts.read.locate import check_name
from service.graph_spec import Precision
from service.manifest import Task

_NO_OPTIONS = TensorOptions()


def export_model(  # noqa: PLR0913 - one parameter for each option of the command
    source: str,
    out: Path,
    *,
    name: str | None = None,
    precision: Precision | None = None,
    task: Task | None = None,
    file: str | None = None,
    via: Literal["torch"] | None = None,
    trust_remote_code: bool = False,
    goldens: Path | None = None,
    unproved: bool = False,
    force: bool = False,
    options: TensorOptions = _NO_OPTIONS,
    progress: Progress | None = None,
) -> Exported:
    """Export a source as a proved bundle at `out`.

    source: a model directory, the name of a published model, `ORG/NAME[@REVISION]` of the hub, `preset:NAME`,
    `FILE.py:CLASS`, `PACKAGE.MODULE:CLASS` or `FILE.onnx`. name: the bundle's, else the source's.
    precision: of weights, hidden states and matrix products; float32 when not given, of a ready graph its own.
    task: what a model directory is to be used for; when not given, what it says itself. file: its ready ONNX file to
    serve; when not given, its weights where it has any.
    via: by what a model directory becomes a graph; when not given, by the families that are known here.
    trust_remote_code: with it, code of the directory may run.
    goldens: a file to prove a model directory with. unproved: accept a model directory without proof.
    force: replace the bundle at `out`. options: what goes with a class or a ready graph.
    Raises ExportError with every fault found; then nothing was written.
    """
    check_target(out, force=force)
    origin = read_origin(source)
    given = {"goldens": goldens, "precision": precision, "task": task, "file": file, "via": via}
    _check_options(origin, options, given | {"trust-remote-code": trust_remote_code or None})
    if origin.kind == "texts":
        target = Target(out, name, precision or "float32", force)
        text_options = TextOptions(task, file, via, trust_remote_code)
        return export_texts(source, target, ProofRequest(goldens, unproved, progress), text_options)
    name = name or origin.name
    if name:  # a source without one is refused for what it lacks
        check_name(name)
    return export_tensors(origin, Target(out, name, precision or "float32", force), options, progress)


def _check_options(origin: Origin, options: TensorOptions, others: Mapping[str, object]) -> None:
    """An option that a source has no use for is refused, never ignored. others: by name, None = not given."""
    given = {
        "--checkpoint": options.checkpoint is not None,
        "--kwargs": options.kwargs is not None,
        "--signature": options.signature is not None,
    } | {f"--{name}": value is not None for name, value in others.items()}
    used = {
        "texts": ("--goldens", "--precision", "--task", "--file", "--via", "--trust-remote-code"),
        "preset": ("--checkpoint", "--precision"),
        "class": ("--checkpoint", "--kwargs", "--signature", "--precision"),
        "onnx": ("--signature",),
    }[origin.kind]
    if faults := [
        f"{option}: a source of this kind has none"
        for option, is_given in given.items()
        if is_given and option not in used
    ]:
        raise ExportError(f"{origin.place}: options that do not belong to it", faults)
    if others["precision"] == "int8" and origin.kind != "texts":
        raise ExportError(
            f"{origin.place}: --precision: float32 or float16 is needed, got int8: it is for encoders of text"
        )
