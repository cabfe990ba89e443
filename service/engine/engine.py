"""The orchestrator: a parsed request in, its answer out, through the stages in order.

tokenize → select → check size → rows → batcher → finish. No branch on model kind: what differs is in the manifest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.bundle import PROBES, Bundle, Manifest, Role
from service.engine import attention, batch
from service.engine.answers import AnswerBudget
from service.engine.batch import Heads, Row, RowResult
from service.engine.batcher import Batcher, Outcome
from service.engine.proof import GraphProofs
from service.engine.request import EncodedItem, EncodeRequest, EncodeResult
from service.engine.texts import TextStage
from service.engine.tokenizer import Encoding
from service.engine.vectors import finish, vector_space
from service.errors import BackendError, RequestError, SpaceMismatchError, StartupError
from service.metrics import NO_OBSERVER, Observer
from service.parity.probes import Probes, load_probes
from service.runners.base import Runner, RunnerInfo
from service.runners.cuda import CudaOptions
from service.runners.ort import CPU, OrtRunner
from service.settings import Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine can answer, and what it is doing."""

    is_ready: bool
    reason: str | None
    queued_tokens: int
    running_calls: int
    last_call_age_s: float | None


class Engine:
    """One bundle being served."""

    def __init__(
        self,
        bundle: Bundle,
        settings: Settings,
        *,
        runner: Runner,
        probes: Probes | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        """probes: what each graph must answer before its first use; None only where a fake model runs."""
        self.bundle = bundle
        self.manifest: Manifest = bundle.manifest
        self.settings = settings
        self._runner = runner
        self._observer = observer
        self._proofs = GraphProofs(bundle, runner, probes)
        self.answers = AnswerBudget(settings.max_answers_bytes)
        self._canary_fault: tuple[float, str] | None = None
        self._texts = TextStage(bundle, settings)
        self._batcher = Batcher(
            self._compute,
            num_workers=runner.info().num_workers,
            max_queue_tokens=settings.max_queue_tokens,
            max_call_tokens=settings.max_call_tokens,
        )

    @classmethod
    def start(cls, bundle: Bundle, settings: Settings, *, observer: Observer = NO_OBSERVER) -> Engine:
        """Load, prove and warm a verified bundle. Blocking; raises StartupError naming the file and field at fault."""
        cuda = CudaOptions(settings.device_id, settings.gpu_memory_bytes, settings.tf32)
        runner = OrtRunner.open(bundle, device=settings.device, num_threads=settings.num_threads, cuda=cuda)
        if bundle.manifest.proof.kind == "invariance":
            _log.warning("bundle %s is unproved: nothing shows that it equals its PyTorch model", bundle.manifest.name)
        if bundle.manifest.precision == "float16" and runner.info().provider == CPU:
            _log.warning(
                "bundle %s is float16, which is for GPUs: on the CPU it is right, and slower than float32",
                bundle.manifest.name,
            )
        probes = load_probes(bundle.file(PROBES))
        engine = cls(bundle, settings, runner=runner, probes=probes, observer=observer)
        if (fault := engine._proofs.fault("encode")) is not None:
            raise StartupError(fault)
        engine._warm()
        return engine

    async def encode(self, request: EncodeRequest) -> EncodeResult:
        """Answer one request. Raises the errors of `service.errors`; all is checked before anything is queued.

        Nothing is run for a request that includes tokens alone. Cancelling drops what has not run.
        """
        space = self._check_space(request)
        role, outputs = self._graph_outputs(request)
        encodings = await self._texts.encode(request, request.truncate or self.settings.truncate)
        self._check_size(request, encodings)
        rows = [_row(encoding, role, outputs, request.attention.heads) for encoding in encodings]
        results = await self._batcher.submit(rows) if outputs else [{} for _ in rows]
        items = [self._finish(request, *pair) for pair in zip(encodings, results, strict=True)]
        num_tokens = sum(len(encoding.ids) for encoding in encodings)
        return EncodeResult(items, num_tokens, space)

    async def tokenize(self, request: EncodeRequest) -> list[EncodedItem]:
        """The tokens of each input, told in full at any length unless `truncate` says otherwise. Nothing is run."""
        encodings = await self._texts.encode(request, request.truncate)
        self._check_size(request, encodings)
        return [self._finish(request, encoding, {}) for encoding in encodings]

    def runner_info(self) -> RunnerInfo:
        """What really runs."""
        return self._runner.info()

    def health(self) -> EngineHealth:
        """Whether workers live, no call is stuck and the last proof of life was good."""
        last = self._batcher.last_success_s
        reason = self._proofs.known_fault()
        if self._canary_fault is not None and self._canary_fault[0] > (last or 0.0):
            reason = self._canary_fault[1]
        elif self._batcher.num_alive() == 0:
            reason = "no worker thread is alive"
        elif self._batcher.longest_call_s() > self.settings.stuck_after_s:
            reason = f"a call of the model has run for more than {self.settings.stuck_after_s:g} s"
        return EngineHealth(
            is_ready=reason is None,
            reason=reason,
            queued_tokens=self._batcher.num_tokens,
            running_calls=self._batcher.num_running,
            last_call_age_s=None if last is None else time.monotonic() - last,
        )

    async def watch(self) -> None:
        """Prove life by a canary whenever nothing has run for a while; runs until cancelled."""
        while True:
            await asyncio.sleep(self.settings.canary_interval_s / 2)
            last = self._batcher.last_success_s
            if last is None or time.monotonic() - last > self.settings.canary_interval_s:
                await self._canary()

    async def close(self, timeout_s: float) -> None:
        """Finish what was admitted, end what is left with an error, free the sessions."""
        await self._batcher.close(timeout_s)
        self._texts.close()
        self._runner.close()

    async def _canary(self) -> None:
        try:
            async with asyncio.timeout(self.settings.stuck_after_s):
                await self._batcher.submit([self._probe_row(2)])
            self._canary_fault = None
        except TimeoutError:
            reason = f"the canary got no answer within {self.settings.stuck_after_s:g} s"
            self._canary_fault = (time.monotonic(), reason)
        except BackendError as error:
            self._canary_fault = (time.monotonic(), f"the canary failed: {error.message}")
        except Exception:
            _log.debug("the canary was not admitted", exc_info=True)

    def _graph_outputs(self, request: EncodeRequest) -> tuple[Role, tuple[str, ...]]:
        outputs = ["pooled"] if "embedding" in request.include else []
        if "outputs" in request.include:
            outputs.append("token_embeddings")
        if "attention" not in request.include:
            return "encode", tuple(outputs)
        if not any(graph.role == "attend" for graph in self.manifest.graphs):
            raise RequestError(
                "include: this bundle has no graph that gives attention; export the model again to have one",
                param="include",
                code="attention_unavailable",
            )
        layers = attention.select_layers(request.attention, self.manifest.attention)
        attention.select_heads(request.attention, self.manifest.attention)  # refused here, before anything is tokenised
        return "attend", (*outputs, *(f"attention.{layer}" for layer in layers))

    def _check_size(self, request: EncodeRequest, encodings: Sequence[Encoding]) -> None:
        lengths = [len(encoding.ids) for encoding in encodings]
        num_values = 0
        if "embedding" in request.include:
            num_values += len(lengths) * (request.dimensions or self.manifest.embedding.dim)
        if "outputs" in request.include:
            num_values += sum(lengths) * self.manifest.embedding.token_dim
        if "attention" in request.include:
            num_values += attention.num_values(request.attention, lengths, self.manifest.attention)
        num_tokens = sum(lengths) if "tokens" in request.include else 0
        attention.check_response_size(
            num_values,
            request.bytes_per_value,
            self.settings.max_response_bytes,
            num_tokens=num_tokens,
            has_attention="attention" in request.include,
        )
        if request.hold is not None:
            # Once as arrays, once as written.
            request.hold(num_values * (4 + request.bytes_per_value) + 2 * num_tokens * attention.BYTES_PER_TOKEN)

    def _finish(self, request: EncodeRequest, encoding: Encoding, result: RowResult) -> EncodedItem:
        include = request.include
        normalize = self.manifest.embedding.normalize if request.normalize is None else request.normalize
        return EncodedItem(
            num_tokens=encoding.num_tokens,
            num_used=len(encoding.ids),
            truncated=encoding.truncated,
            embedding=finish(result["pooled"], normalize, request.dimensions) if "embedding" in include else None,
            outputs=result["token_embeddings"] if "outputs" in include else None,
            tokens=self._texts.tokens(encoding) if "tokens" in include else None,
            attention=attention.name_layers(result, request.attention, self.manifest.attention)
            if "attention" in include
            else None,
        )

    def _check_space(self, request: EncodeRequest) -> str:
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

    def _compute(self, role: Role, rows: Sequence[Row], is_alone: bool) -> list[Outcome]:
        if self._proofs.fault(role) is not None:
            raise BackendError(f"the graph {role!r} of this model is broken", code="graph_unproved")
        graph = self.manifest.graph(role)
        started_s = time.monotonic()
        inputs = batch.collate(graph, rows, pad_token_id=self.manifest.text.pad_token_id)
        names = tuple(dict.fromkeys(name for row in rows for name in row.outputs))
        arrays = self._runner.run(role, inputs, names, is_alone=is_alone)
        results = batch.split(graph, rows, dict(zip(names, arrays, strict=True)))
        real = sum(row.length for row in rows)
        padded = len(rows) * max(row.length for row in rows)
        self._observer.call_finished(role, len(rows), real, padded, time.monotonic() - started_s)
        return [self._guarded(result) for result in results]

    def _guarded(self, result: RowResult) -> Outcome:
        if batch.is_finite(result):
            return result
        _log.error("model %s gave a value that is not finite", self.manifest.name)
        return BackendError("the model gave a value that is not finite", code="non_finite_output")

    def _warm(self) -> None:
        max_tokens = self.manifest.text.max_tokens
        for length in warm_lengths(self._runner.info().provider, max_tokens):
            row = self._probe_row(length)
            self._compute("encode", [row], is_alone=True)
            self._compute("encode", [row] * max(1, self.settings.max_call_tokens // max_tokens), is_alone=False)

    def _probe_row(self, length: int) -> Row:
        ids = np.full(length, self.manifest.text.pad_token_id, dtype=np.int64)
        return Row({"input_ids": ids}, length, "encode", ("pooled",))


def warm_lengths(provider: str, max_tokens: int) -> list[int]:
    """Lengths to run before the first request. A GPU chooses its kernels anew for every size, a CPU only wakes up."""
    lengths = [2, 64] if provider == "CPUExecutionProvider" else [2**power for power in range(1, 14)]
    return sorted({min(length, max_tokens) for length in lengths})


def _row(encoding: Encoding, role: Role, outputs: tuple[str, ...], heads: Heads) -> Row:
    inputs = {"input_ids": encoding.ids, "token_type_ids": encoding.type_ids}
    if encoding.pooling_mask is not None:
        inputs["pooling_mask"] = encoding.pooling_mask
    return Row(inputs, len(encoding.ids), role, outputs, heads)
