"""The road of texts: a model directory becomes a bundle. Needs no torch.

source ─ read_model → Model ─ build_graph → encode.onnx, attend.onnx
       ─ prove → probes.safetensors, parity.json ─ seal → manifest.json
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import onnx

from export.atomic import new_directory
from export.checkpoint import StoredTensor
from export.errors import ExportError
from export.progress import quiet
from export.prove import ProofRequest, prove
from export.seal import UNPROVED, Exported, Target, created_by, open_tokenizer, write_proof
from export.texts.graphs.build import build_graph
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.spec import graph_spec
from export.texts.precision import derive
from export.texts.read.dense import write_dense
from export.texts.read.locate import Location, check_name, check_pin, locate, name_of
from export.texts.read.model import Model, read_model
from export.texts.ready.choose import Choice, choose_file
from export.texts.ready.export import export_ready
from export.texts.ready.reference import can_compare
from export.texts.space import fingerprint
from export.texts.traced.export import export_traced
from export.texts.weights import place_weights
from service.bundle import Bundle
from service.graph_spec import Precision, Role
from service.manifest import (
    SCHEMA_VERSION,
    TOKENIZER,
    WEIGHTS,
    AttentionSpec,
    EmbeddingSpec,
    Task,
    TextManifest,
    TextSpec,
)

_ROLES: tuple[Role, ...] = ("encode", "attend")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What a model directory is read with.

    task: what it is to be used for; None = what it says itself. file: its ONNX file to serve; None = its weights, where
    it has any. via: torch = transformers loads it and PyTorch traces it. is_code_allowed: code of the directory
    may run then.
    """

    task: Task | None = None
    file: str | None = None
    via: Literal["torch"] | None = None
    is_code_allowed: bool = False


NO_TEXT_OPTIONS = TextOptions()


def export_texts(
    source: str, target: Target, request: ProofRequest, options: TextOptions = NO_TEXT_OPTIONS
) -> Exported:
    """Export a model directory, or a published model by its name, as a proved bundle.

    Raises ExportError with every fault found; then nothing was written.
    """
    tell = request.progress or quiet
    name = target.name or name_of(source)
    check_name(name)
    _check_options(source, options)
    location = locate(source, tell, Choice(options.file, is_compared=can_compare(request)))
    if options.via is not None:
        named = replace(target, name=name)
        return export_traced(location, named, request, options.task, is_code_allowed=options.is_code_allowed)
    if (chosen := choose_file(location.path, options.file)) is not None:
        return export_ready(location, chosen, replace(target, name=name), request, options.task)
    tell(f"reading {location.path}", 0, 0)
    model = read_model(location.path, options.task)
    check_pin(name, model.weights.identity)
    with new_directory(target.path, force=target.force) as work:
        tell("building the graphs", 0, 0)
        placed = place_weights(model, work, target.precision)
        placed |= write_dense(model.dense, work) if model.dense else {}
        manifest = _write_model(work, model, placed, _draft(name, location, model, target.precision))
        open_tokenizer(work, manifest)
        with TemporaryDirectory(dir=work) as scratch:
            proved = prove(Bundle(work, manifest), placed, request, scratch=Path(scratch))
        manifest = write_proof(work, manifest, proved, location.warnings + model.warnings)
    return Exported(target.path, manifest, proved.report)


def _check_options(source: str, options: TextOptions) -> None:
    if options.is_code_allowed and options.via is None:
        raise ExportError(f"{source}: --trust-remote-code: code of a directory runs with --via torch alone")
    if options.file is not None and options.via is not None:
        raise ExportError(f"{source}: --file {options.file}: a ready graph is taken as it is, without --via torch")


def _write_model(work: Path, model: Model, placed: Mapping[str, StoredTensor], draft: TextManifest) -> TextManifest:
    (work / TOKENIZER).write_bytes(model.tokenizer.content)
    tensors = derive(work, placed, draft.precision)
    for spec in draft.graphs:
        kind = GraphKind(spec.role, spec.precision)
        graph = build_graph(
            model.config,
            tensors,
            pooling=model.modes,
            head=model.head_config,
            dense=model.dense_configs,
            pooled_dim=model.embedding_dim,
            kind=kind,
        )
        file = work / spec.file
        file.write_bytes(graph.SerializeToString(deterministic=True))
        onnx.checker.check_model(str(file), full_check=True)
    used = {WEIGHTS, *(tensor.file for tensor in placed.values()), *(tensor.file for tensor in tensors.values())}
    return draft.model_copy(update={"weights": tuple(sorted(used, reverse=True))})


def _draft(name: str, location: Location, model: Model, precision: Precision) -> TextManifest:
    config, pooling, prompts = model.config, model.pooling, model.prompts
    return TextManifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        family=config.family,
        file=model.weights.file,
        encoder=config.to_dict(),
        source=dict(sorted({**location.recorded, **model.sha256}.items())),
        created_by=created_by(),
        num_parameters=model.num_parameters,
        proof=UNPROVED,
        graphs=tuple(
            graph_spec(
                config,
                pooling=model.modes,
                head=model.head_config,
                dense=model.dense_configs,
                pooled_dim=model.embedding_dim,
                kind=GraphKind(role, precision),
            )
            for role in _ROLES
        ),
        task=model.task,
        text=TextSpec(
            max_tokens=model.limit.max_tokens,
            max_tokens_source=model.limit.source,
            vocab_size=config.vocab_size,
            pad_token_id=config.pad_token_id,
            token_dim=model.token_dim,
            num_token_types=config.num_token_types,
            prompts=dict(prompts.texts),
            default_prompt_name=prompts.default,
            include_prompt=pooling.include_prompt,
        ),
        embedding=_embedding(model) if model.task == "embedding" else None,
        embedding_space=embedding_space(model, precision) if model.task == "embedding" else None,
        head=model.head.spec if model.head else None,
        head_config=model.head_config.to_dict() if model.head_config else None,
        dense=tuple(module.to_dict() for module in model.dense_configs),
        attention=AttentionSpec(layers=config.num_layers, heads=config.num_heads, head_dim=config.head_dim),
        weights=(WEIGHTS,),
        files={},
    )


def _embedding(model: Model) -> EmbeddingSpec:
    pooling = model.pooling
    return EmbeddingSpec(
        dim=model.embedding_dim,
        pooling=pooling.modes,
        pooling_source=pooling.source,
        normalize=model.normalize,
    )


def embedding_space(model: Model, precision: Precision) -> str:
    """SHA-256 over all that decides the vectors: two bundles with the same one can share an index."""
    parts: dict[str, Any] = {
        "weights": model.weights.identity,
        "tokenizer": hashlib.sha256(model.tokenizer.content).hexdigest(),
        "pooling": model.pooling.modes,
        "prompts": dict(model.prompts.texts),
        "default_prompt_name": model.prompts.default,
        "include_prompt": model.pooling.include_prompt,
        "normalize": model.normalize,
        "dim": model.embedding_dim,
        "precision": precision,
        "encoder": model.config.to_dict(),
    }
    if model.dense and model.dense_configs:
        parts["dense"] = [[module.to_dict() for module in model.dense_configs], model.dense.sha256()]
    return fingerprint(parts)
