"""The engine: one bundle's runner, proofs and batcher, its health, and the model that answers requests through them.

A model (`text_model`, `tensor_model`) makes rows of a request and an answer of their results; what runs is the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from service.bundle import Bundle
from service.engine import batch
from service.engine.batch import Row, RowResult
from service.engine.batcher import Batcher, Outcome
from service.engine.host import Host
from service.engine.policy import call_tokens
from service.engine.proof import GraphProofs
from service.engine.request import EncodedItem, EncodeRequest, EncodeResult, TensorRequest, TensorResult
from service.engine.tasks import told
from service.engine.tensor_model import TensorModel
from service.engine.text_model import Submit, TextModel
from service.errors import BackendError, RequestError, ServiceError, StartupError
from service.graph_spec import Role
from service.manifest import PARITY, PROBES, Manifest, TextManifest
from service.parity.probes import Probes, load_probes
from service.runners.base import Runner, RunnerInfo
from service.runners.cpus import may_saturate
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
        bundle: Bundle[Manifest],
        settings: Settings,
        *,
        runner: Runner,
        probes: Probes | None = None,
        host: Host | None = None,
    ) -> None:
        """probes: what each graph must answer before its first use; None only where a fake model runs.

        host: the server that it runs in, None = it shares nothing. Raises StartupError.
        """
        self.bundle = bundle
        self.manifest: Manifest = bundle.manifest
        self.settings = settings
        # Told of this version for as long as it is served, whatever becomes of its folder.
        report = bundle.file(PARITY)
        self.created_s = bundle.path.stat().st_mtime
        self.parity = report.read_bytes() if report.is_file() else None
        self._runner = runner
        self._host = host or Host.alone(settings)
        self._proofs = GraphProofs(bundle, runner, probes)
        self.answers = self._host.answers
        self._canary_fault: tuple[float, str] | None = None
        self._model = _open_model(bundle, settings, lambda rows: self._batcher.submit(rows), probes)
        self.max_call_tokens = call_tokens(self.manifest, settings)
        self._batcher = Batcher(
            self._compute,
            name=self.manifest.name,
            num_workers=runner.info().num_workers,
            max_call_tokens=self.max_call_tokens,
            budget=self._host.queue,
            is_repeatable=self._host.is_repeatable,
        )

    @classmethod
    def start(cls, bundle: Bundle[Manifest], settings: Settings, *, host: Host | None = None) -> Engine:
        """Load, prove and warm a verified bundle. Blocking; raises StartupError naming the file and field at fault.

        Whatever it raises, nothing of it is left behind.
        """
        cuda = CudaOptions(settings.device_id, settings.gpu_memory_bytes, settings.tf32)
        runner = OrtRunner.open(bundle, device=settings.device, num_threads=settings.num_threads, cuda=cuda)
        if bundle.manifest.proof.kind == "invariance":
            _log.warning("bundle %s is unproved: nothing shows that it equals its PyTorch model", bundle.manifest.name)
        if bundle.manifest.precision == "float16" and runner.info().provider == CPU:
            _log.warning(
                "bundle %s is float16, which is for GPUs: on the CPU it is right, and slower than float32",
                bundle.manifest.name,
            )
        if bundle.manifest.precision == "int8" and may_saturate():
            _log.warning(
                "bundle %s is int8, and this processor has no VNNI: sums may saturate, answers be further from float32",
                bundle.manifest.name,
            )
        if isinstance(bundle.manifest, TextManifest):
            _log.info("bundle %s: %s", bundle.manifest.name, told(bundle.manifest))
        with ExitStack() as undo:
            undo.callback(runner.close)
            engine = cls(bundle, settings, runner=runner, probes=load_probes(bundle.file(PROBES)), host=host)
            undo.callback(engine._abandon)
            engine._prove()
            engine._warm()
            undo.pop_all()
        return engine

    async def encode(self, request: EncodeRequest) -> EncodeResult:
        """Answer a request for texts: `TextModel.encode`."""
        return await self.texts.encode(request)

    async def tokenize(self, request: EncodeRequest) -> list[EncodedItem]:
        """The tokens of texts: `TextModel.tokenize`."""
        return await self.texts.tokenize(request)

    async def infer(self, request: TensorRequest) -> TensorResult:
        """Answer a request for tensors: `TensorModel.infer`."""
        return await self.tensors.infer(request)

    @property
    def texts(self) -> TextModel:
        """The model as one that takes text. Raises RequestError when it takes tensors."""
        if isinstance(self._model, TextModel):
            return self._model
        raise RequestError(
            f"model: `{self.manifest.name}` takes tensors, not text: send `tensors` to /v1/encode, or use /v2",
            param="model",
            code="unsupported",
        )

    @property
    def tensors(self) -> TensorModel:
        """The model as one that takes tensors. Raises RequestError when it takes text."""
        if isinstance(self._model, TensorModel):
            return self._model
        raise RequestError(
            f"tensors: `{self.manifest.name}` takes text: send `input`", param="tensors", code="unsupported"
        )

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
        self._model.close()
        self._runner.close()

    def _prove(self) -> None:
        # On a GPU no graph waits for its first use: none may be found unfit while the service says that it is ready.
        has_gpu = self._runner.info().provider != CPU
        for graph in self.manifest.graphs if has_gpu else [self.manifest.graph("encode")]:
            if (fault := self._proofs.fault(graph.role)) is not None:
                raise StartupError(fault)

    def _abandon(self) -> None:
        """End the threads of an engine that nobody has asked yet."""
        self._batcher.stop()
        self._host.queue.leave(self._batcher)
        self._model.close()

    async def _canary(self) -> None:
        try:
            async with asyncio.timeout(self.settings.stuck_after_s):
                await self._batcher.submit([self._model.probe_row(2)])
            self._canary_fault = None
        except TimeoutError:
            reason = f"the canary got no answer within {self.settings.stuck_after_s:g} s"
            self._canary_fault = (time.monotonic(), reason)
        except BackendError as error:
            self._canary_fault = (time.monotonic(), f"the canary failed: {error.message}")
        except Exception:
            _log.debug("the canary was not admitted", exc_info=True)

    def _compute(self, role: Role, rows: Sequence[Row], is_alone: bool) -> list[Outcome]:
        if self._proofs.fault(role) is not None:
            raise BackendError(f"the graph {role!r} of this model is broken", code="graph_unproved")
        graph = self.manifest.graph(role)
        started_s = time.monotonic()
        inputs = batch.collate(graph, rows, pad_token_id=self.manifest.pad_token_id)
        names = tuple(dict.fromkeys(name for row in rows for name in row.outputs))
        arrays = self._runner.run(role, inputs, names, is_alone=is_alone)
        results = batch.split(graph, rows, dict(zip(names, arrays, strict=True)))
        real = sum(row.length for row in rows)
        padded = len(rows) * batch.padded_length(rows)
        self._host.observer.call_finished(role, len(rows), real, padded, time.monotonic() - started_s)
        return [self._guarded(result) for result in results]

    def _guarded(self, result: RowResult) -> Outcome:
        if batch.is_finite(result):
            return result
        _log.error("model %s gave a value that is not finite", self.manifest.name)
        return BackendError("the model gave a value that is not finite", code="non_finite_output")

    def _warm(self) -> None:
        """A row alone, and a full call of such rows, of every length that the provider is warmed for.

        Raises StartupError when the model fails on them: the canary's are of the same kind.
        """
        for length in warm_lengths(self._runner.info().provider, self._model.max_length):
            row = self._model.probe_row(length)
            self._warm_by([row], is_alone=True)
            if row.group is not None:
                num_rows = max(1, self.max_call_tokens // row.length)
                self._warm_by([row] * num_rows, is_alone=False)

    def _warm_by(self, rows: Sequence[Row], *, is_alone: bool) -> None:
        for outcome in self._compute("encode", rows, is_alone=is_alone):
            if isinstance(outcome, ServiceError):
                raise StartupError(f"{self.bundle.path}: warming up failed: {outcome.message}")


def warm_lengths(provider: str, max_tokens: int) -> list[int]:
    """Lengths to run before the first request. A GPU chooses its kernels anew for every size, a CPU only wakes up."""
    lengths = [64] if provider == CPU else [2**power for power in range(1, 14)]
    return sorted({min(length, max_tokens) for length in lengths})


def _open_model(
    bundle: Bundle[Manifest], settings: Settings, submit: Submit, probes: Probes | None
) -> TextModel | TensorModel:
    if isinstance(bundle.manifest, TextManifest):
        return TextModel(Bundle(bundle.path, bundle.manifest), settings, submit)
    assert probes is not None, "no fake model takes tensors"
    return TensorModel(bundle.manifest, settings, submit, probes)
