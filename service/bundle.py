"""The bundle: the only thing that passes from export to service.

A directory with `manifest.json` and the files it lists. `Manifest` is its exact content, `open_bundle` the only way in:
it believes nothing that the checksums do not confirm. Knows no session: `runners.ort` compares the graphs themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import StartupError
from service.parity.report import ParityReport

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
DERIVED = "derived.safetensors"
TOKENIZER = "tokenizer.json"
PROBES = "probes.safetensors"
PARITY = "parity.json"

Role = Literal["encode", "attend"]
Precision = Literal["float32", "float16"]
Proof = Literal["pytorch", "golden", "invariance"]
Meaning = Literal[
    "token_ids", "attention_mask", "token_types", "pooling_mask", "token_embeddings", "pooled", "attention"
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorSpec(_Frozen):
    """One input or output of a graph. axes: words are symbolic, numbers are fixed."""

    name: str
    dtype: Literal["float32", "float16", "int64", "int32", "bool"]
    axes: tuple[str | int, ...]
    meaning: Meaning


class GraphSpec(_Frozen):
    """One ONNX file.

    precision: of weights, hidden states and matrix products; inputs and outputs have types of their own.
    masks: `any` = exact under every mask, `right` = padding on the right only.
    """

    role: Role
    file: str
    precision: Precision
    providers: tuple[str, ...]
    opset: int
    masks: Literal["any", "right"]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def output(self, name: str) -> TensorSpec:
        """The output of that name. Raises KeyError."""
        return {spec.name: spec for spec in self.outputs}[name]


class TextSpec(_Frozen):
    """How text becomes ids. max_tokens: special tokens included; max_tokens_source: the file and key that set it."""

    max_tokens: int = Field(ge=3)
    max_tokens_source: str
    vocab_size: int = Field(ge=1)
    pad_token_id: int = Field(ge=0)
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    include_prompt: bool = True


class EmbeddingSpec(_Frozen):
    """The vector: pooled by the graph, L2-normalised and cut on the host. token_dim: width of `token_embeddings`."""

    dim: int = Field(ge=1)
    token_dim: int = Field(ge=1)
    pooling: tuple[str, ...]
    pooling_source: str
    normalize: bool


class AttentionSpec(_Frozen):
    """What `attend` gives: per layer `[batch, heads, seq, seq]` weights after softmax."""

    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)


class ProofSpec(_Frozen):
    """What shows that the graphs compute what the reference does."""

    kind: Proof
    reference: str
    batch_invariant: Literal["proved", "unproved"]


class Manifest(_Frozen):
    """Identity, content and proof of one bundle.

    files: SHA-256 of every other file of the bundle, by relative path.
    source: SHA-256 of every file it was built from.
    encoder: the shape of the model (`models.config.EncoderConfig`), which the PyTorch reference is built from.
    embedding_space: SHA-256 over all that decides the vectors (weights, tokenizer, pooling, prompts, normalisation,
    dimension, precision).
    manifest_sha256: of this manifest's canonical form without this field.
    """

    schema_version: Literal[1]
    name: str = Field(min_length=1)
    family: str
    encoder: dict[str, str | int | float]
    source: dict[str, str]
    created_by: dict[str, str]
    num_parameters: int
    proof: ProofSpec
    graphs: tuple[GraphSpec, ...]
    text: TextSpec
    embedding: EmbeddingSpec
    attention: AttentionSpec
    embedding_space: str
    files: dict[str, str]
    manifest_sha256: str = ""

    def graph(self, role: Role) -> GraphSpec:
        """The graph of that role. Raises KeyError when the bundle has none."""
        return {graph.role: graph for graph in self.graphs}[role]

    @property
    def precision(self) -> Precision:
        """Of every graph: the weights of a bundle have one. Raises KeyError without a graph `encode`."""
        return self.graph("encode").precision

    @property
    def file_names(self) -> tuple[str, ...]:
        """What `files` must list."""
        derived = (DERIVED,) if any(graph.precision == "float16" for graph in self.graphs) else ()
        return (WEIGHTS, *derived, TOKENIZER, PROBES, PARITY, *(graph.file for graph in self.graphs))

    def canonical_sha256(self) -> str:
        """SHA-256 of the sorted, compact JSON of everything but `manifest_sha256`."""
        content = self.model_dump(mode="json", exclude={"manifest_sha256"})
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def sealed(self) -> Manifest:
        """This manifest with its own checksum filled in."""
        return self.model_copy(update={"manifest_sha256": self.canonical_sha256()})

    def to_bytes(self) -> bytes:
        """The only bytes that `manifest.json` may hold for this content."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2) + b"\n"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A directory whose manifest and files were verified."""

    path: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        return self.path / name


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_bundle(path: Path, *, verify_files: bool = True) -> Bundle:
    """Read and verify a bundle. Raises StartupError naming the file and the field that is wrong.

    verify_files: compare every file with its SHA-256 (0.05 s for 90 MB); off only where the caller verifies later.
    """
    manifest = read_manifest(path)
    _check_limits(path, manifest)
    if verify_files:
        verify_bundle_files(path, manifest)
        _check_parity(path, manifest)
    return Bundle(path, manifest)


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
        raise StartupError(f"{file}: schema_version is {version!r}, this build reads {SCHEMA_VERSION}")
    try:
        return Manifest.model_validate_json(orjson.dumps(raw))
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
    encoder, text = manifest.encoder, manifest.text
    positions = int(encoder["max_positions"]) - int(encoder["position_offset"])
    faults = []
    if text.max_tokens > positions:
        faults.append(f"text.max_tokens is {text.max_tokens}, the position table has room for {positions}")
    if text.vocab_size != encoder["vocab_size"]:
        faults.append(f"text.vocab_size is {text.vocab_size}, encoder.vocab_size is {encoder['vocab_size']}")
    if len({graph.precision for graph in manifest.graphs}) > 1:
        found = ", ".join(f"{graph.role} {graph.precision}" for graph in manifest.graphs)
        faults.append(f"graphs: one bundle has one precision, got {found}")
    if faults:
        raise StartupError(f"{path / MANIFEST}: " + "; ".join(faults))


def _check_parity(path: Path, manifest: Manifest) -> None:
    try:
        report = ParityReport.model_validate_json((path / PARITY).read_bytes())
    except ValidationError as error:
        raise StartupError(f"{path / PARITY}: not a parity report: {error.error_count()} faults") from None
    if not report.passed:
        failed = "; ".join(f"{gate.name}: {gate.worst} over {gate.limit} ({gate.case})" for gate in report.failures)
        raise StartupError(f"{path / PARITY}: the proof failed: {failed or 'no gate was measured'}")
