"""What the model of each task gives, and the refusal of what it does not."""

from __future__ import annotations

from collections.abc import Mapping

from service.errors import RequestError
from service.manifest import EmbeddingSpec, Task, TextManifest

# What a caller can ask of a model of each task.
_OFFERS: Mapping[Task, str] = {
    "embedding": "embeddings of texts",
    "sequence_classification": "classes of texts",
    "token_classification": "classes of tokens",
    "sparse": "sparse vectors of texts",
    "late_interaction": "a vector for each token",
}


def unsupported_task(manifest: TextManifest, asked: str, *, param: str) -> RequestError:
    """The refusal of what this model's task does not give. asked: in words that end the sentence "gives no …"."""
    return RequestError(
        f"{param}: `{manifest.name}` gives no {asked}: its task is {manifest.task}, it gives {_OFFERS[manifest.task]}",
        param=param,
        code="unsupported_task",
    )


def embedding_of(manifest: TextManifest, *, param: str = "include") -> EmbeddingSpec:
    """The vector that the model gives. Raises RequestError when its task gives none."""
    if manifest.embedding is None:
        raise unsupported_task(manifest, "embedding", param=param)
    return manifest.embedding
