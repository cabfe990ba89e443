"""What the model of each task gives, and the refusal of what it does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from service.engine.request import Include
from service.errors import RequestError
from service.manifest import AttentionSpec, EmbeddingSpec, HeadSpec, Task, TextManifest

_OF_ALL: tuple[Include, ...] = ("tokens", "outputs", "attention")
_OF_TASK: Mapping[Task, tuple[Include, ...]] = {
    "embedding": ("embedding", *_OF_ALL),
    "sequence_classification": ("classes", *_OF_ALL),
    "token_classification": ("entities", "classes", *_OF_ALL),
    "sparse": ("sparse", *_OF_ALL),
    "late_interaction": ("outputs", "tokens", "attention"),
}
_READY = ".onnx"
_ROUTES: Mapping[Task, tuple[str, ...]] = {
    "embedding": ("/v1/embeddings",),
    "sequence_classification": ("/v1/classify",),
}
_WORDS: Mapping[Include, str] = {"embedding": "embeddings", "sparse": "sparse vectors"}


def includes(manifest: TextManifest) -> tuple[Include, ...]:
    """All that this model gives; the first is its task's own, what comes when nothing is asked for."""
    return tuple(include for include in _OF_TASK[manifest.task] if not _lacks(manifest, include))


def _lacks(manifest: TextManifest, include: Include) -> bool:
    """Whether the graphs give less than models of the task usually do, as a ready one may."""
    if include == "attention":
        return manifest.attention_graph is None
    return include == "outputs" and not manifest.text.token_dim


def routes(manifest: TextManifest) -> tuple[str, ...]:
    """Where this model can be asked, `/v1/encode` last: that route is for every model."""
    own = _ROUTES.get(manifest.task, ())
    return (*own, *(["/v1/rerank"] if is_scorer(manifest) else []), "/v1/encode")


def told(manifest: TextManifest) -> str:
    """What the model is for and where that was found, for the log."""
    text, embedding = manifest.text, manifest.embedding
    pooling = "" if embedding is None else f", pooling {'+'.join(embedding.pooling)} ({embedding.pooling_source})"
    return f"{manifest.task}{pooling}, {text.max_tokens} tokens ({text.max_tokens_source})"


def is_scorer(manifest: TextManifest) -> bool:
    """Whether it gives one number for a text or a pair, by which documents can be ranked."""
    return manifest.task == "sequence_classification" and len(head_of(manifest).labels) == 1


def check_includes(manifest: TextManifest, include: Collection[Include]) -> None:
    """Raises RequestError for what the model's task does not give."""
    for name in sorted(set(include) - set(includes(manifest))):
        if name in _OF_TASK[manifest.task]:
            raise _unavailable(manifest, name)
        raise unsupported_task(manifest, _WORDS.get(name, name), param="include")


def _unavailable(manifest: TextManifest, name: Include) -> RequestError:
    what = "attention weights" if name == "attention" else "vectors of tokens"
    message = f"include: `{manifest.name}` is made of {manifest.file}, as PyTorch traces it, which gives no {what}"
    if manifest.file.endswith(_READY):
        message = (
            f"include: `{manifest.name}` is the ready graph {manifest.file}, which gives no {what}: a bundle made of "
            "the model's weights does (qkv export without --file)"
        )
    if name == "attention":
        return RequestError(message, param="include", code="attention_unavailable")
    return RequestError(message, param="include", code="outputs_unavailable")


def unsupported_task(manifest: TextManifest, asked: str, *, param: str) -> RequestError:
    """The refusal of what this model's task does not give, with what it does. asked: what it gives none of."""
    *own, native = routes(manifest)
    offer = f"{' or '.join(own)}, or {native}" if own else native
    return RequestError(
        f"{param}: `{manifest.name}` is a model for {manifest.task} and gives no {asked}: ask {offer} "
        f"with `include` of {', '.join(includes(manifest))}",
        param=param,
        code="unsupported_task",
    )


def embedding_of(manifest: TextManifest, *, param: str = "include") -> EmbeddingSpec:
    """The vector that the model gives. Raises RequestError when its task gives none."""
    if manifest.embedding is None:
        raise unsupported_task(manifest, "embeddings", param=param)
    return manifest.embedding


def attention_of(manifest: TextManifest) -> AttentionSpec:
    """The attention weights that the model gives. Raises RequestError when its graph gives none."""
    if manifest.attention is None:
        raise _unavailable(manifest, "attention")
    return manifest.attention


def head_of(manifest: TextManifest, *, param: str = "include") -> HeadSpec:
    """What the model's logits stand for. Raises RequestError when its task gives none."""
    if manifest.head is None:
        raise unsupported_task(manifest, "classes", param=param)
    return manifest.head
