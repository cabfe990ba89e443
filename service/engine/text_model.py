"""A bundle that takes text: tokenize → select → check size → rows → run → finish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from service.bundle import Bundle
from service.engine import attention
from service.engine.batch import Heads, Row, RowResult
from service.engine.request import EncodedItem, EncodeRequest, EncodeResult
from service.engine.tasks import embedding_of, unsupported_task
from service.engine.texts import TextStage
from service.engine.tokenizer import Encoding
from service.engine.vectors import finish, vector_space
from service.errors import RequestError, SpaceMismatchError
from service.manifest import TASK_OUTPUTS, Role, TextManifest
from service.runners.base import Array
from service.settings import Settings

Submit = Callable[[Sequence[Row]], Awaitable[list[RowResult]]]


class TextModel:
    """Answers requests for texts and token ids. submit: runs rows, all of a request's together."""

    def __init__(self, bundle: Bundle[TextManifest], settings: Settings, submit: Submit) -> None:
        """Raises StartupError when the bundle's tokenizer cannot be used."""
        self.manifest = bundle.manifest
        self._settings = settings
        self._submit = submit
        self._texts = TextStage(bundle, settings)

    async def encode(self, request: EncodeRequest) -> EncodeResult:
        """Answer one request. Raises the errors of `service.errors`; all is checked before anything is queued.

        Nothing is run for a request that includes tokens alone. Cancelling drops what has not run.
        """
        space = self._check_space(request)
        role, outputs = self._graph_outputs(request)
        encodings = await self._texts.encode(request, request.truncate or self._settings.truncate)
        self._check_size(request, encodings)
        rows = [_row(encoding, role, outputs, request.attention.heads) for encoding in encodings]
        results = await self._submit(rows) if outputs else [{} for _ in rows]
        items = [self._finish(request, *pair) for pair in zip(encodings, results, strict=True)]
        num_tokens = sum(len(encoding.ids) for encoding in encodings)
        return EncodeResult(items, num_tokens, space)

    async def tokenize(self, request: EncodeRequest) -> list[EncodedItem]:
        """The tokens of each input, told in full at any length unless `truncate` says otherwise. Nothing is run."""
        encodings = await self._texts.encode(request, request.truncate)
        self._check_size(request, encodings)
        return [self._finish(request, encoding, {}) for encoding in encodings]

    @property
    def max_length(self) -> int:
        """The longest row there can be, in tokens."""
        return self.manifest.text.max_tokens

    def probe_row(self, length: int) -> Row:
        """A row that proves life and warms up."""
        ids = np.full(length, self.manifest.text.pad_token_id, dtype=np.int64)
        return Row({"input_ids": ids}, {"seq": length}, "encode", (TASK_OUTPUTS[self.manifest.task],))

    def close(self) -> None:
        """Take no further texts."""
        self._texts.close()

    def _graph_outputs(self, request: EncodeRequest) -> tuple[Role, tuple[str, ...]]:
        outputs = ["pooled"] if "embedding" in request.include else []
        if "outputs" in request.include:
            outputs.append("token_embeddings")
        if "attention" not in request.include:
            return "encode", tuple(outputs)
        graph = self.manifest.attention_graph
        if graph is None:
            raise RequestError(
                "include: this bundle has no graph that gives attention; export the model again to have one",
                param="include",
                code="attention_unavailable",
            )
        layers = attention.select_layers(request.attention, self.manifest.attention)
        attention.select_heads(request.attention, self.manifest.attention)  # refused here, before anything is tokenised
        return graph.role, (*outputs, *(f"attention.{layer}" for layer in layers))

    def _check_size(self, request: EncodeRequest, encodings: Sequence[Encoding]) -> None:
        lengths = [len(encoding.ids) for encoding in encodings]
        num_values = 0
        if "embedding" in request.include:
            num_values += len(lengths) * (request.dimensions or embedding_of(self.manifest).dim)
        if "outputs" in request.include:
            num_values += sum(lengths) * self.manifest.text.token_dim
        if "attention" in request.include:
            num_values += attention.num_values(request.attention, lengths, self.manifest.attention)
        num_tokens = sum(lengths) if "tokens" in request.include else 0
        attention.check_response_size(
            num_values,
            request.bytes_per_value,
            self._settings.max_response_bytes,
            num_tokens=num_tokens,
            has_attention="attention" in request.include,
        )
        if request.hold is not None:
            # Once as arrays, once as written.
            request.hold(num_values * (4 + request.bytes_per_value) + 2 * num_tokens * attention.BYTES_PER_TOKEN)

    def _finish(self, request: EncodeRequest, encoding: Encoding, result: RowResult) -> EncodedItem:
        include = request.include
        return EncodedItem(
            num_tokens=encoding.num_tokens,
            num_used=len(encoding.ids),
            truncated=encoding.truncated,
            embedding=self._vector(request, result["pooled"]) if "embedding" in include else None,
            outputs=result["token_embeddings"] if "outputs" in include else None,
            tokens=self._texts.tokens(encoding) if "tokens" in include else None,
            attention=attention.name_layers(result, request.attention, self.manifest.attention)
            if "attention" in include
            else None,
        )

    def _vector(self, request: EncodeRequest, pooled: Array) -> Array:
        normalize = embedding_of(self.manifest).normalize if request.normalize is None else request.normalize
        return finish(pooled, normalize, request.dimensions)

    def _check_space(self, request: EncodeRequest) -> str:
        """The space of the vectors, empty when none are asked for. Raises RequestError, SpaceMismatchError."""
        if self.manifest.embedding is None:
            return self._no_space(request)
        dim = self.manifest.embedding.dim
        if request.dimensions is not None and not 1 <= request.dimensions <= dim:
            raise RequestError(f"dimensions: 1 to {dim} allowed, got {request.dimensions}", param="dimensions")
        space = vector_space(self.manifest, request.normalize, request.dimensions)
        if request.embedding_space not in (None, space):
            raise SpaceMismatchError(
                f"embedding_space: this request gives vectors of {space}, the index was built in another one",
                param="embedding_space",
            )
        return space

    def _no_space(self, request: EncodeRequest) -> str:
        asked = ["include"] if "embedding" in request.include else []
        fields = {
            "dimensions": request.dimensions,
            "normalize": request.normalize,
            "embedding_space": request.embedding_space,
        }
        asked += [name for name, value in fields.items() if value is not None]
        if asked:
            raise unsupported_task(self.manifest, "embedding", param=asked[0])
        return ""


def _row(encoding: Encoding, role: Role, outputs: tuple[str, ...], heads: Heads) -> Row:
    inputs = {"input_ids": encoding.ids, "token_type_ids": encoding.type_ids}
    if encoding.pooling_mask is not None:
        inputs["pooling_mask"] = encoding.pooling_mask
    return Row(inputs, {"seq": len(encoding.ids)}, role, outputs, heads)
