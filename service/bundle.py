"""The bundle: the only thing that passes from export to service.

A directory with `manifest.json`, whose exact content `service.manifest` describes, and the files it lists.
`open_bundle` is the only way in: it believes nothing that the checksums do not confirm. Knows no session: `runners.ort`
compares the graphs themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from service.errors import StartupError
from service.manifest import MANIFEST, PARITY, SCHEMA_VERSION, TASK_OUTPUTS, Manifest, TextManifest
from service.parity.report import ParityReport

_MANIFESTS: TypeAdapter[Manifest] = TypeAdapter(Annotated[Manifest, Field(discriminator="kind")])


M_co = TypeVar("M_co", bound=Manifest, covariant=True)


@dataclass(frozen=True)
class Bundle(Generic[M_co]):
    """A directory whose manifest and files were verified."""

    path: Path
    manifest: M_co

    def file(self, name: str) -> Path:
        return self.path / name


def directory_name(path: Path) -> str:
    """What the bundle of a model directory is called: as the directory, or as the repository of a hub's snapshot."""
    path = path.resolve()
    repo = path.parent.parent.name  # models--ORG--NAME/snapshots/COMMIT
    if path.parent.name == "snapshots" and repo.startswith("models--"):
        return repo.rpartition("--")[2]
    return path.name


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_bundle(path: Path, *, verify_files: bool = True) -> Bundle[Manifest]:
    """Read and verify a bundle. Raises StartupError naming the file and the field that is wrong.

    verify_files: compare every file with its SHA-256 (0.05 s for 90 MB); off only where the caller verifies later.
    """
    manifest = read_manifest(path)
    _check_limits(path, manifest)
    if verify_files:
        verify_bundle_files(path, manifest)
        _check_parity(path, manifest)
    return Bundle(path, manifest)


def open_text_bundle(path: Path, *, verify_files: bool = True) -> Bundle[TextManifest]:
    """`open_bundle` for who needs one that takes text. Raises StartupError for another kind too."""
    return Bundle(path, _of_text(path, open_bundle(path, verify_files=verify_files).manifest))


def read_text_manifest(path: Path) -> TextManifest:
    """`read_manifest` for who needs one that takes text. Raises StartupError for another kind too."""
    return _of_text(path, read_manifest(path))


def _of_text(path: Path, manifest: Manifest) -> TextManifest:
    if not isinstance(manifest, TextManifest):
        raise StartupError(f"{path}: a bundle that takes text is needed, this one takes {manifest.kind}")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Parse `manifest.json` and check its own checksum. Raises StartupError."""
    file = path / MANIFEST
    try:
        content = file.read_bytes()
        raw = orjson.loads(content)
    except FileNotFoundError:
        raise StartupError(f"{path}: no {MANIFEST}: not a bundle") from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise StartupError(f"{file}: cannot be read: {error}") from None
    manifest = _parse(file, raw)
    if manifest.manifest_sha256 != manifest.canonical_sha256():
        raise StartupError(
            f"{file}: manifest_sha256 is {manifest.manifest_sha256[:12]}…, the content gives "
            f"{manifest.canonical_sha256()[:12]}…: the manifest was changed"
        )
    if content != manifest.to_bytes():
        raise StartupError(f"{file}: not the bytes that this manifest is written as: the file was changed")
    return manifest


def _parse(file: Path, raw: Any) -> Manifest:
    version = raw.get("schema_version") if isinstance(raw, Mapping) else None
    if version != SCHEMA_VERSION:
        raise StartupError(
            f"{file}: schema_version is {version!r}, this build reads {SCHEMA_VERSION}: export the model again"
        )
    try:
        return _MANIFESTS.validate_json(orjson.dumps(raw))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise StartupError(f"{file}: {faults}") from None


def verify_bundle_files(path: Path, manifest: Manifest) -> None:
    """Compare every listed file with its SHA-256. Raises StartupError with all faults at once."""
    faults = []
    for name, expected in manifest.files.items():
        file = path / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            faults.append(f"{name}: files must lie inside the bundle")
        elif file.is_symlink() or not file.is_file():
            faults.append(f"{name}: missing, or not a plain file")
        elif (found := sha256_file(file)) != expected:
            faults.append(f"{name}: files[{name}] says sha256 {expected[:12]}…, the file has {found[:12]}…")
    missing = [name for name in manifest.file_names if name not in manifest.files]
    faults += [f"{MANIFEST}: files does not list {name}" for name in missing]
    if faults:
        raise StartupError(f"{path}: " + "; ".join(faults))


def _check_limits(path: Path, manifest: Manifest) -> None:
    faults = _text_faults(manifest) if isinstance(manifest, TextManifest) else []
    if len({graph.precision for graph in manifest.graphs}) > 1:
        found = ", ".join(f"{graph.role} {graph.precision}" for graph in manifest.graphs)
        faults.append(f"graphs: one bundle has one precision, got {found}")
    if faults:
        raise StartupError(f"{path / MANIFEST}: " + "; ".join(faults))


def _text_faults(manifest: TextManifest) -> list[str]:
    encoder, text = manifest.encoder, manifest.text
    if encoder is None:
        return _task_faults(manifest)
    positions = manifest.encoder_size("max_positions") - manifest.encoder_size("position_offset")
    faults = []
    if text.max_tokens > positions:
        faults.append(f"text.max_tokens is {text.max_tokens}, the position table has room for {positions}")
    if text.vocab_size != encoder["vocab_size"]:
        faults.append(f"text.vocab_size is {text.vocab_size}, encoder.vocab_size is {encoder['vocab_size']}")
    return faults + _task_faults(manifest)


def _task_faults(manifest: TextManifest) -> list[str]:
    """A task without what answers it, or with what only another one has."""
    task = manifest.task
    is_vector, is_classes = task == "embedding", task.endswith("_classification")
    expected = {"embedding": is_vector, "embedding_space": is_vector, "head": is_classes}
    faults = [
        f"{name}: the task {task} {'needs one' if is_needed else 'has none'}"
        for name, is_needed in expected.items()
        if (getattr(manifest, name) is not None) != is_needed
    ]
    output = TASK_OUTPUTS[task]
    return faults + [
        f"graphs: the task {task} needs an output {output}, {graph.file} has none"
        for graph in manifest.graphs
        if output not in (spec.name for spec in graph.outputs)
    ]


def _check_parity(path: Path, manifest: Manifest) -> None:
    try:
        report = ParityReport.model_validate_json((path / PARITY).read_bytes())
    except ValidationError as error:
        raise StartupError(f"{path / PARITY}: not a parity report: {error.error_count()} faults") from None
    if not report.passed:
        failed = "; ".join(f"{gate.name}: {gate.worst} over {gate.limit} ({gate.case})" for gate in report.failures)
        raise StartupError(f"{path / PARITY}: the proof failed: {failed or 'no gate was measured'}")
