"""What a model's outputs become for one text, by its task, and how large the answer will be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from service.engine import attention
from service.engine.batch import RowResult
from service.engine.entities import BYTES_PER_ENTITY, Entity, TokenPlaces, find_entities, read_tags
from service.engine.request import EncodedItem, EncodeRequest, Include, Input, SparseVector, Text
from service.engine.scores import activate
from service.engine.tasks import attention_of, embedding_of, head_of
from service.engine.texts import TextStage
from service.engine.tokenizer import Encoding
from service.engine.vectors import finish
from service.manifest import TASK_OUTPUTS, TextManifest
from service.runners.base import Array

# A token of a vocabulary in quotes; its id is as long as a float at most.
_BYTES_PER_WORD = 16


def graph_outputs(manifest: TextManifest, request: EncodeRequest) -> tuple[str, ...]:
    """The graph outputs that a request needs, attention weights apart."""
    names = {
        "embedding": "pooled",
        "outputs": "token_embeddings",
        "sparse": "sparse",
        "classes": TASK_OUTPUTS[manifest.task],
        "entities": TASK_OUTPUTS[manifest.task],
    }
    return tuple(dict.fromkeys(name for include, name in names.items() if include in request.include))


def num_values(manifest: TextManifest, request: EncodeRequest, lengths: Sequence[int]) -> int:
    """How many floats the answer holds for texts of these lengths, but for sparse vectors. Raises RequestError."""
    num_tokens = _num_tokens(request, lengths)
    num_labels = 0 if manifest.head is None else len(manifest.head.labels)
    is_of_tokens = manifest.task == "token_classification"
    counts: Mapping[Include, int] = {
        "embedding": len(lengths) * (request.dimensions or _dim(manifest)),
        "classes": num_labels * (num_tokens if is_of_tokens else len(lengths)),
        "outputs": num_tokens * manifest.text.token_dim,
        "sparse": len(lengths) * manifest.text.vocab_size if request.is_dense else 0,
    }
    total = sum(count for include, count in counts.items() if include in request.include)
    if "attention" in request.include:
        total += attention.num_values(request.attention, lengths, attention_of(manifest))
    return total


def entity_bytes(manifest: TextManifest, request: EncodeRequest, lengths: Sequence[int]) -> float:
    """What entities take in the answer at most: every token may be one."""
    if "entities" not in request.include:
        return 0.0
    return sum(lengths) * (BYTES_PER_ENTITY + max(len(label) for label in head_of(manifest).labels))


def unsent_bytes(manifest: TextManifest, request: EncodeRequest, lengths: Sequence[int]) -> float:
    """Memory of arrays that only a part of is sent: all logits of tokens, and all weights of a vocabulary."""
    num_values = len(lengths) * manifest.text.vocab_size if "sparse" in request.include else 0
    if "entities" in request.include:
        num_values += sum(lengths) * len(head_of(manifest).labels)
    return 4.0 * num_values


def sparse_bytes(items: Sequence[EncodedItem], bytes_per_value: float) -> float:
    """What the sparse vectors of an answer take; only who has them knows."""
    num_weights = sum(len(item.sparse.indices) for item in items if item.sparse is not None)
    return num_weights * (2 * bytes_per_value + _BYTES_PER_WORD)


class TextAnswers:
    """Makes items of encodings and of what a model gave for them. Unchanged after construction."""

    def __init__(self, manifest: TextManifest, texts: TextStage) -> None:
        self._manifest = manifest
        self._texts = texts
        self._tags = None if manifest.head is None else read_tags(manifest.head.labels)

    def item(self, request: EncodeRequest, given: Input, encoding: Encoding, result: RowResult) -> EncodedItem:
        """The answer for one input. result: the graph outputs of its row, as far as they were asked for."""
        include, manifest = request.include, self._manifest
        return EncodedItem(
            num_tokens=encoding.num_tokens,
            num_used=len(encoding.ids),
            truncated=encoding.truncated,
            embedding=self._vector(request, result["pooled"]) if "embedding" in include else None,
            classes=self._classes(request, result) if "classes" in include else None,
            entities=self._entities(request, given, encoding, result) if "entities" in include else None,
            sparse=self._sparse(result["sparse"]) if "sparse" in include else None,
            outputs=self._outputs(request, result["token_embeddings"]) if "outputs" in include else None,
            tokens=self._texts.tokens(encoding) if "tokens" in include else None,
            attention=attention.name_layers(result, request.attention, attention_of(manifest))
            if "attention" in include
            else None,
        )

    def _vector(self, request: EncodeRequest, pooled: Array) -> Array:
        normalize = embedding_of(self._manifest).normalize if request.normalize is None else request.normalize
        return finish(pooled, normalize, request.dimensions)

    def _outputs(self, request: EncodeRequest, hidden: Array) -> Array:
        """The vectors of tokens; where they are compared one by one, each of length 1 unless it was asked not to be."""
        if self._manifest.task != "late_interaction" or request.normalize is False:
            return hidden
        return finish(hidden, True, None)

    def _classes(self, request: EncodeRequest, result: RowResult) -> Array:
        logits = result[TASK_OUTPUTS[self._manifest.task]]
        return logits if request.raw_scores else activate(logits, head_of(self._manifest).activation)

    def _entities(
        self, request: EncodeRequest, given: Input, encoding: Encoding, result: RowResult
    ) -> tuple[Entity, ...]:
        assert self._tags is not None
        assert encoding.offsets is not None
        assert encoding.sequences is not None
        texts = tuple(text for text in (given.text, given.pair) if text is not None) if isinstance(given, Text) else ()
        words = np.arange(len(encoding.ids)) if encoding.words is None else encoding.words
        places = TokenPlaces(encoding.offsets, encoding.sequences, words, texts)
        scores = activate(result["token_logits"], head_of(self._manifest).activation)
        return find_entities(scores, self._tags, places, request.aggregation)

    def _sparse(self, weights: Array) -> SparseVector:
        indices = np.flatnonzero(weights)
        return SparseVector(indices.astype(np.int32), weights[indices], self._texts.words(indices))


def _dim(manifest: TextManifest) -> int:
    return 0 if manifest.embedding is None else manifest.embedding.dim


def _num_tokens(request: EncodeRequest, lengths: Sequence[int]) -> int:
    return len(lengths) * max(lengths) if request.is_dense else sum(lengths)
