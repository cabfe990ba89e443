"""`GET /v1/models`: OpenAI's model object, and what is really served beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import BaseModel

from service.engine.engine import Engine
from service.engine.tasks import includes, routes
from service.graph_spec import DENSE, TensorSpec
from service.manifest import Manifest, TensorManifest, TextManifest


def model_list(engines: Iterable[Engine]) -> bytes:
    """The list of the models loaded."""
    return orjson.dumps({"object": "list", "data": [summary(engine) for engine in engines]})


def model_detail(engine: Engine) -> bytes:
    """One model, with its manifest and the full report of its proof."""
    return orjson.dumps(
        summary(engine)
        | {
            "manifest": engine.manifest.model_dump(mode="json"),
            "parity": None if engine.parity is None else orjson.loads(engine.parity),
        }
    )


def summary(engine: Engine) -> dict[str, Any]:
    """What a caller needs to know before the first request."""
    manifest = engine.manifest
    return (
        {
            "id": manifest.name,
            "object": "model",
            "created": int(engine.created_s),
            "owned_by": "qkv",
            "family": manifest.family,
            "num_parameters": manifest.num_parameters,
            "kind": manifest.kind,
            "attention": _attention(manifest),
            "proof": manifest.proof.model_dump(mode="json"),
            "batch_invariant": manifest.proof.batch_invariant,
            "limits": limits(engine),
        }
        | (_of_text(manifest) if isinstance(manifest, TextManifest) else _of_tensors(manifest))
        | runtime(engine)
    )


def _of_text(manifest: TextManifest) -> dict[str, Any]:
    return {
        "task": manifest.task,
        "file": manifest.file,
        "include": includes(manifest),
        "routes": routes(manifest),
        "token_dim": manifest.text.token_dim or None,
        "embedding": _dumped(manifest.embedding),
        "head": _dumped(manifest.head),
        "embedding_space": manifest.embedding_space,
        "max_input_tokens": manifest.text.max_tokens,
        "max_input_tokens_source": manifest.text.max_tokens_source,
        "prompts": sorted(manifest.text.prompts),
        "default_prompt_name": manifest.text.default_prompt_name,
    }


def _of_tensors(manifest: TensorManifest) -> dict[str, Any]:
    graph = manifest.graph("encode")
    return {
        "inputs": [_tensor(spec) | {"is_required": spec.is_required} for spec in graph.inputs],
        "outputs": [_tensor(spec) for spec in graph.outputs],
        "batching": manifest.tensors.batching,
        "max_sizes": manifest.tensors.max_sizes,
        "takes_empty_rows": manifest.tensors.takes_empty_rows,
        "masks": graph.masks,
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    fields = {"name": spec.name, "dtype": spec.dtype, "axes": spec.axes, "meaning": spec.meaning}
    return fields if spec.layout == DENSE else fields | {"layout": spec.layout.kind}


def runtime(engine: Engine) -> dict[str, Any]:
    """What runs, as the loaded session reports it."""
    graph = engine.manifest.graph("encode")
    return dataclasses.asdict(engine.runner_info()) | {"precision": graph.precision, "graph": graph.file}


def limits(engine: Engine) -> dict[str, Any]:
    """What this server takes, from its settings."""
    settings = engine.settings
    return {
        "max_items": settings.max_items,
        "max_body_bytes": settings.max_body_bytes,
        "max_text_chars": settings.max_text_chars,
        "max_response_bytes": settings.max_response_bytes,
        "max_queue_tokens": settings.max_queue_tokens,
        "request_timeout_s": settings.request_timeout_s,
        "truncate": settings.truncate,
        "token_ids": settings.token_ids,
        "special_tokens": settings.special_tokens,
    }


def _attention(manifest: Manifest) -> dict[str, Any] | None:
    return _dumped(manifest.attention) if manifest.attention_graph is not None else None


def _dumped(spec: BaseModel | None) -> dict[str, Any] | None:
    return None if spec is None else spec.model_dump(mode="json")
