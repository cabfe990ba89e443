"""A model directory becomes a bundle: read, built, proved, written at once.

    source ─ read_model → Model ─ build_graph → encode.onnx, attend.onnx
           ─ prove → probes.safetensors, parity.json ─ seal → manifest.json

The same source, packages and machine give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from export.atomic import check_target, new_directory
from export.build import GraphKind, build_graph, graph_spec
from export.errors import ExportError
from export.model import Model, read_model
from export.precision import write_half
from export.prove import Progress, ProofRequest, Proved, prove
from export.source import check_name, check_pin, locate
from service.bundle import Bundle, open_bundle, sha256_file
from service.engine.tokenizer import TextTokenizer
from service.errors import StartupError
from service.manifest import (
    DERIVED,
    MANIFEST,
    PARITY,
    PROBES,
    SCHEMA_VERSION,
    TOKENIZER,
    WEIGHTS,
    AttentionSpec,
    EmbeddingSpec,
    Precision,
    ProofSpec,
    Role,
    TextManifest,
    TextSpec,
)
from service.parity.probes import save_probes
from service.parity.report import ParityReport

_ROLES: tuple[Role, ...] = ("encode", "attend")
_UNPROVED = ProofSpec(kind="invariance", reference="", batch_invariant="unproved")


@dataclass(frozen=True, slots=True)
class Exported:
    """A bundle that was written. warnings: what its user should know."""

    path: Path
    manifest: TextManifest
    report: ParityReport
    warnings: tuple[str, ...]


def export_model(  # noqa: PLR0913 - one parameter for each option of the command
    source: str,
    out: Path,
    *,
    name: str | None = None,
    precision: Precision = "float32",
    goldens: Path | None = None,
    unproved: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Export a model directory, or a published model by its name, as a proved bundle at `out`.

    name: the bundle's, else the directory's. precision: of weights, hidden states and matrix products.
    goldens: a file to prove it with. unproved: accept a bundle without proof.
    force: replace the bundle at `out`. Raises ExportError with every fault found; then nothing was written.
    """
    check_target(out, force=force)
    location = locate(source)
    name = name or location.name
    check_name(name)
    tell = progress or _quiet
    tell(f"reading {location.path}", 0, 0)
    model = read_model(location.path)
    check_pin(name, model.weights_sha256)
    request = ProofRequest(goldens, unproved, progress)
    with new_directory(out, force=force) as work:
        tell("building the graphs", 0, 0)
        manifest = _write_model(work, model, _draft(name, model, precision))
        _open_tokenizer(work, manifest)
        with TemporaryDirectory(dir=work) as scratch:
            proved = prove(Bundle(work, manifest), model.checkpoint.tensors, request, scratch=Path(scratch))
        manifest = _write_proof(work, manifest, proved)
    return Exported(out, manifest, proved.report, model.warnings)


def _write_model(work: Path, model: Model, draft: TextManifest) -> TextManifest:
    shutil.copyfile(model.weights, work / WEIGHTS)
    if sha256_file(work / WEIGHTS) != model.weights_sha256:
        raise ExportError(f"{model.weights}: changed while it was read")
    (work / TOKENIZER).write_bytes(model.tokenizer.content)
    tensors = model.checkpoint.tensors
    if draft.precision == "float16":
        tensors = write_half(work / WEIGHTS, tensors, work / DERIVED)
    for spec in draft.graphs:
        kind = GraphKind(spec.role, spec.precision)
        graph = build_graph(model.config, tensors, pooling=model.pooling.modes, kind=kind)
        file = work / spec.file
        file.write_bytes(graph.SerializeToString(deterministic=True))
        onnx.checker.check_model(str(file), full_check=True)
    return draft


def _quiet(_title: str, _done: int, _total: int) -> None:
    """No progress was asked for."""


def _open_tokenizer(work: Path, manifest: TextManifest) -> None:
    """As the service does, before anything is proved: a bundle that cannot start is not one."""
    try:
        # What a request may hold has no part in opening it.
        TextTokenizer(work / TOKENIZER, manifest.text, max_text_chars=sys.maxsize, token_ids="framed")
    except StartupError as error:
        raise ExportError(f"the bundle's tokenizer cannot be served: {error}") from None


def _write_proof(work: Path, draft: TextManifest, proved: Proved) -> TextManifest:
    save_probes(work / PROBES, proved.probes, proved.spec.reference)
    (work / PARITY).write_text(proved.report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    files = {name: sha256_file(work / name) for name in sorted(draft.file_names)}
    manifest = draft.model_copy(update={"proof": proved.spec, "files": files}).sealed()
    (work / MANIFEST).write_bytes(manifest.to_bytes())
    for file in work.iterdir():
        file.chmod(0o644)
    try:
        open_bundle(work)
    except StartupError as error:
        raise ExportError(f"the bundle cannot be served: {error}") from None
    return manifest


def _draft(name: str, model: Model, precision: Precision) -> TextManifest:
    config, pooling, prompts = model.config, model.pooling, model.prompts
    return TextManifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        family=config.family,
        encoder=config.to_dict(),
        source=dict(sorted(model.sha256.items())),
        created_by=_created_by(),
        num_parameters=model.checkpoint.num_parameters,
        proof=_UNPROVED,
        graphs=tuple(graph_spec(config, pooling=pooling.modes, kind=GraphKind(role, precision)) for role in _ROLES),
        text=TextSpec(
            max_tokens=model.limit.max_tokens,
            max_tokens_source=model.limit.source,
            vocab_size=config.vocab_size,
            pad_token_id=config.pad_token_id,
            prompts=dict(prompts.texts),
            default_prompt_name=prompts.default,
            include_prompt=pooling.include_prompt,
        ),
        embedding=EmbeddingSpec(
            dim=config.dim * len(pooling.modes),
            token_dim=config.dim,
            pooling=pooling.modes,
            pooling_source=pooling.source,
            normalize=model.normalize,
        ),
        attention=AttentionSpec(layers=config.num_layers, heads=config.num_heads, head_dim=config.head_dim),
        embedding_space=embedding_space(model, precision),
        files={},
    )


def embedding_space(model: Model, precision: Precision) -> str:
    """SHA-256 over all that decides the vectors: two bundles with the same one can share an index."""
    space = {
        "weights": model.weights_sha256,
        "tokenizer": hashlib.sha256(model.tokenizer.content).hexdigest(),
        "pooling": model.pooling.modes,
        "prompts": dict(model.prompts.texts),
        "default_prompt_name": model.prompts.default,
        "include_prompt": model.pooling.include_prompt,
        "normalize": model.normalize,
        "dim": model.config.dim * len(model.pooling.modes),
        "precision": precision,
        "encoder": model.config.to_dict(),
    }
    canonical = json.dumps(space, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _created_by() -> dict[str, str]:
    runtime = _version("onnxruntime", "onnxruntime-gpu")
    return {"qkv": _version("qkv"), "onnx": _version("onnx"), "onnxruntime": runtime}


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "0"
