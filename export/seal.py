"""The end of every export: probes, report and manifest are written, and the bundle is opened as the service will."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from export.errors import ExportError
from export.prove import Proved
from service.bundle import open_bundle, sha256_file
from service.engine.tokenizer import TextTokenizer
from service.errors import StartupError, printable
from service.graph_spec import Precision
from service.manifest import MANIFEST, PARITY, PROBES, TOKENIZER, Manifest, ProofSpec, TensorManifest, TextManifest
from service.parity.probes import save_probes
from service.parity.report import ParityReport

UNPROVED = ProofSpec(kind="invariance", reference="", batch_invariant="unproved")

M = TypeVar("M", TextManifest, TensorManifest)


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be written. name: the bundle's; None = the source's. force: replace the bundle at `path`."""

    path: Path
    name: str | None = None
    precision: Precision = "float32"
    force: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """A bundle that was written."""

    path: Path
    manifest: Manifest
    report: ParityReport

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its user should know."""
        return self.manifest.warnings


def write_proof(work: Path, draft: M, proved: Proved, warnings: Sequence[str]) -> M:
    """Complete and seal a bundle whose other files are there. -> its manifest

    warnings: what its user should know. Raises ExportError when the service would not open it.
    """
    save_probes(work / PROBES, proved.probes, proved.spec.reference)
    (work / PARITY).write_text(proved.report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    files = {name: sha256_file(work / name) for name in sorted(draft.file_names)}
    update = {"proof": proved.spec, "files": files, "warnings": tuple(map(printable, warnings))}
    manifest = draft.model_copy(update=update).sealed()
    (work / MANIFEST).write_bytes(manifest.to_bytes())
    for file in work.iterdir():
        file.chmod(0o644)
    try:
        open_bundle(work)
    except StartupError as error:
        raise ExportError(f"the bundle cannot be served: {error}") from None
    return manifest


def open_tokenizer(work: Path, manifest: TextManifest) -> None:
    """As the service does, before anything is proved: a bundle that cannot start is not one. Raises ExportError."""
    try:
        # What a request may hold has no part in opening it.
        TextTokenizer(work / TOKENIZER, manifest.text, max_text_chars=sys.maxsize, token_ids="framed")
    except StartupError as error:
        raise ExportError(f"the bundle's tokenizer cannot be served: {error}") from None


def created_by(*packages: str) -> dict[str, str]:
    """The versions that a bundle depends on: of qkv, ONNX and ONNX Runtime, and of further packages."""
    found = {"qkv": _version("qkv"), "onnx": _version("onnx")}
    found["onnxruntime"] = _version("onnxruntime", "onnxruntime-gpu")
    return found | {package: _version(package) for package in packages}


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "0"
