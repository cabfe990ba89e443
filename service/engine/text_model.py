"""A bundle that takes text: tokenize → select → check size → rows → run → finish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from service.bundle import Bundle
from service.engine import attention, text_answers
from service.engine.batch import Row, RowResult
from service.engine.policy import call_tokens
from service.engine.request import EncodedItem, EncodeRequest, EncodeResult
from service.engine.sized import build_sized
from service.engine.tasks import attention_of, check_includes, head_of, unsupported_task
from service.engine.text_answers import TextAnswers, graph_outputs
from service.engine.texts import TextStage
from service.engine.tokenizer import Encoding
from service.engine.vectors import vector_space
from service.errors import RequestError, SpaceMismatchError
from service.graph_spec import Role
from service.manifest import TASK_OUTPUTS, TextManifest
from service.settings import Settings

Submit = Callable[[Sequence[Row]], Awaitable[list[RowResult]]]


class TextModel:
    """Answers requests for texts and token ids. submit: runs rows, all of a request's together."""

    def __init__(self, bundle: Bundle[TextManifest], settings: Settings, submit: Submit) -> None:
        """Raises StartupError when the bundle's tokenizer cannot be used."""
        self.manifest = bundle.manifest
        self._settings = settings
        self._max_call_tokens = call_tokens(bundle.manifest, settings)
        self._submit = submit
        self._texts = TextStage(bundle, settings)
        self._answers = TextAnswers(bundle.manifest, self._texts)
        self._group = None if bundle.manifest.batching == "alone" else "any"

    async def encode(self, request: EncodeRequest) -> EncodeResult:
        """Answer one request. Raises the errors of `service.errors`; all is checked before anything is queued.

        Nothing is run for a request that includes tokens alone. Cancelling drops what has not run.
        """
        check_includes(self.manifest, request.include)
        space = self._check_space(request)
        role, outputs = self._graph_outputs(request)
        encodings = await self._texts.encode(request, request.truncate or self._settings.truncate)
        num_held = self._check_size(request, encodings)
        rows = [self._row(request, encoding, role, outputs) for encoding in encodings]
        results = await self._submit(rows) if outputs else [{} for _ in rows]
        items = await self._finish(request, encodings, results)
        if "sparse" in request.include:
            self._check_sparse(request, items, num_held)
        num_tokens = sum(len(encoding.ids) for encoding in encodings)
        labels = head_of(self.manifest).labels if "classes" in request.include else ()
        return EncodeResult(items, num_tokens, space, labels)

    async def tokenize(self, request: EncodeRequest) -> list[EncodedItem]:
        """The tokens of each input, told in full at any length unless `truncate` says otherwise. Nothing is run."""
        encodings = await self._texts.encode(request, request.truncate)
        self._check_size(request, encodings)
        return await self._finish(request, encodings, [{} for _ in encodings])

    @property
    def max_length(self) -> int:
        """The longest row there can be, in tokens."""
        return self.manifest.text.max_tokens

    def probe_row(self, length: int) -> Row:
        """A row that proves life and warms up. Not of padding: a ready graph may take that for an empty text."""
        text = self.manifest.text
        ids = np.full(length, (text.pad_token_id + 1) % text.vocab_size, dtype=np.int64)
        outputs = (TASK_OUTPUTS[self.manifest.task],)
        return Row({"input_ids": ids}, {"seq": length}, "encode", outputs, group=self._group)

    def close(self) -> None:
        """Take no further texts."""
        self._texts.close()

    def _graph_outputs(self, request: EncodeRequest) -> tuple[Role, tuple[str, ...]]:
        outputs = graph_outputs(self.manifest, request)
        graph = self.manifest.attention_graph
        if "attention" not in request.include or graph is None:
            return "encode", outputs
        spec = attention_of(self.manifest)
        layers = attention.select_layers(request.attention, spec)
        attention.select_heads(request.attention, spec)  # refused here, before anything is tokenised
        return graph.role, (*outputs, *(f"attention.{layer}" for layer in layers))

    def _row(self, request: EncodeRequest, encoding: Encoding, role: Role, outputs: tuple[str, ...]) -> Row:
        inputs, num_tokens = {"input_ids": encoding.ids, "token_type_ids": encoding.type_ids}, len(encoding.ids)
        if encoding.pooling_mask is not None:
            inputs["pooling_mask"] = encoding.pooling_mask
        is_alone = "attention" in request.include and not attention.may_share_a_call(
            num_tokens, attention_of(self.manifest), self._max_call_tokens, self._settings.max_attention_bytes
        )
        group = None if is_alone else self._group
        return Row(inputs, {"seq": num_tokens}, role, outputs, request.attention.heads, group)

    def _check_size(self, request: EncodeRequest, encodings: Sequence[Encoding]) -> float:
        """Refuse an answer that is too large, as far as can be told before it is computed. -> bytes that are held"""
        lengths = [len(encoding.ids) for encoding in encodings]
        if "attention" in request.include:
            attention.check_work(lengths, attention_of(self.manifest), self._settings.max_attention_bytes)
        num_values = text_answers.num_values(self.manifest, request, lengths)
        num_tokens = sum(lengths) if "tokens" in request.include else 0
        num_bytes = request.answer_bytes
        if num_bytes is None:
            num_bytes = num_values * request.bytes_per_value
            num_bytes += text_answers.entity_bytes(self.manifest, request, lengths)
        attention.check_response_size(
            num_values if request.answer_bytes is None else 0,
            request.bytes_per_value,
            self._settings.max_response_bytes,
            num_tokens=num_tokens,
            num_bytes=num_bytes,
            has_attention="attention" in request.include,
            param=request.param,
        )
        num_kept = 4 * num_values + text_answers.unsent_bytes(self.manifest, request, lengths)
        num_held = num_kept + num_bytes + 2 * num_tokens * attention.BYTES_PER_TOKEN  # objects, and what is written
        if request.hold is not None:
            request.hold(num_held)
        return num_held

    async def _finish(
        self, request: EncodeRequest, encodings: Sequence[Encoding], results: Sequence[RowResult]
    ) -> list[EncodedItem]:
        """The items; where the model gave much that few things are made of, they are made beside the event loop."""

        def finish() -> list[EncodedItem]:
            rows = zip(request.inputs, encodings, results, strict=True)
            return [self._answers.item(request, *row) for row in rows]

        lengths = [len(encoding.ids) for encoding in encodings]
        return await build_sized(finish, text_answers.unsent_bytes(self.manifest, request, lengths))

    def _check_sparse(self, request: EncodeRequest, items: Sequence[EncodedItem], num_held: float) -> None:
        """Refuse sparse vectors that are too many, now that they are known."""
        num_bytes = text_answers.sparse_bytes(items, request.bytes_per_value)
        attention.check_response_size(
            len(items), request.bytes_per_value, self._settings.max_response_bytes, num_bytes=num_bytes
        )
        if request.hold is not None and num_bytes > num_held:
            request.hold(num_bytes - num_held)

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
        fields: dict[str, object] = {
            "dimensions": request.dimensions,
            # Vectors of tokens are normalised where they are compared one by one.
            "normalize": None if self.manifest.task == "late_interaction" else request.normalize,
            "embedding_space": request.embedding_space,
        }
        for name, value in fields.items():
            if value is not None:
                raise unsupported_task(self.manifest, "embeddings", param=name)
        return ""
