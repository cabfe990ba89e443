"""`GET /v1/models`: OpenAI's model object, and what is really served beside it."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from service.bundle import PARITY
from service.engine.engine import Engine
from service.errors import NotFoundError


def model_list(engine: Engine) -> bytes:
    """The list of the models loaded."""
    return orjson.dumps({"object": "list", "data": [summary(engine)]})


def model_detail(engine: Engine, model_id: str) -> bytes:
    """One model, with its manifest and the full report of its proof. Raises NotFoundError."""
    if model_id != engine.manifest.name:
        raise NotFoundError(
            f"model: only `{engine.manifest.name}` is loaded here", param="model", code="model_not_found"
        )
    report = engine.bundle.file(PARITY)
    return orjson.dumps(
        summary(engine)
        | {
            "manifest": engine.manifest.model_dump(mode="json"),
            "parity": orjson.loads(report.read_bytes()) if report.is_file() else None,
        }
    )


def summary(engine: Engine) -> dict[str, Any]:
    """What a caller needs to know before the first request."""
    manifest = engine.manifest
    return {
        "id": manifest.name,
        "object": "model",
        "created": int(engine.bundle.path.stat().st_mtime),
        "owned_by": "qkv",
        "family": manifest.family,
        "num_parameters": manifest.num_parameters,
        "embedding": manifest.embedding.model_dump(mode="json"),
        "embedding_space": manifest.embedding_space,
        "max_input_tokens": manifest.text.max_tokens,
        "max_input_tokens_source": manifest.text.max_tokens_source,
        "prompts": sorted(manifest.text.prompts),
        "default_prompt_name": manifest.text.default_prompt_name,
        "attention": manifest.attention.model_dump(mode="json") if _has_attention(engine) else None,
        "proof": manifest.proof.model_dump(mode="json"),
        "batch_invariant": manifest.proof.batch_invariant,
        "limits": limits(engine),
    } | runtime(engine)


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
    }


def _has_attention(engine: Engine) -> bool:
    return any(graph.role == "attend" for graph in engine.manifest.graphs)
