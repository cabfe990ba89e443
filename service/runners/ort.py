"""ONNX Runtime: one session per graph and thread layout, checked against the manifest before its first call.

Threads: calls under load share one single-threaded session, each worker thread computing on its own core; a call that
is alone uses a second session over the same mapped weights with every core, whose threads spin between the operators
of the call, and never between calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import onnxruntime as ort

from service.bundle import Bundle, GraphSpec, Role, TensorSpec
from service.errors import StartupError
from service.runners.base import Array, RunnerInfo
from service.runners.cpus import usable_cpus
from service.runners.cuda import CudaOptions, assignments, misplaced, missing_cuda, run_bound

Device = Literal["cpu", "cuda", "auto"]
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
DEFAULT_CUDA = CudaOptions()
_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "int64": "tensor(int64)",
    "int32": "tensor(int32)",
    "bool": "tensor(bool)",
}

_log = logging.getLogger(__name__)


class OrtRunner:
    """Runs a bundle's graphs. Safe to call from several threads at once."""

    def __init__(self, bundle: Bundle, provider: str, num_threads: int, cuda: CudaOptions) -> None:
        self._bundle = bundle
        self._provider = provider
        self._cuda = cuda
        self._num_threads = num_threads
        self._lock = threading.Lock()
        self._shared: dict[str, ort.InferenceSession] = {}
        self._alone: dict[str, ort.InferenceSession] = {}
        self._info = RunnerInfo("onnxruntime", "none", num_threads, 1)
        self._is_closed = False

    @classmethod
    def open(
        cls, bundle: Bundle, *, device: Device = "cpu", num_threads: int = 0, cuda: CudaOptions = DEFAULT_CUDA
    ) -> OrtRunner:
        """Choose the provider and load the `encode` graph.

        num_threads: CPU threads; 0 = what affinity and cgroup allow.
        Raises StartupError: no usable GPU under `cuda` (naming what is missing), a graph that is not what the manifest
        says, or one of which CUDA leaves a heavy operator to the CPU.
        """
        num_threads = num_threads or usable_cpus()
        if device != "cpu":
            reason = missing_cuda(cuda.device_id)
            if reason is None:
                return cls._opened(bundle, _CUDA, num_threads, cuda)
            if device == "cuda":
                raise StartupError(f"QKV_DEVICE=cuda: no usable GPU: {reason}")
            _log.warning("QKV_DEVICE=auto: no usable GPU: %s; running on %s", reason, _CPU)
        return cls._opened(bundle, _CPU, num_threads, cuda)

    @classmethod
    def _opened(cls, bundle: Bundle, provider: str, num_threads: int, cuda: CudaOptions) -> OrtRunner:
        runner = cls(bundle, provider, num_threads, cuda)
        runner.load("encode")
        runner._info = RunnerInfo("onnxruntime", provider, num_threads, num_threads if provider == _CPU else 1)
        return runner

    def info(self) -> RunnerInfo:
        return self._info

    def load(self, role: str) -> None:
        with self._lock:
            if role in self._shared:
                return
            if self._is_closed:
                raise StartupError(f"{role}: the runner was closed")
            graph = self._bundle.manifest.graph(_role(role))
            session = self._session(graph, 1)
            check_session(graph, session)
            has_second = self._num_threads > 1 and self._provider == _CPU
            self._alone[role] = self._session(graph, self._num_threads, is_spinning=True) if has_second else session
            self._shared[role] = session

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        if role not in self._shared:
            self.load(role)
        session = self._alone[role] if is_alone else self._shared[role]
        if self._provider == _CUDA:
            return run_bound(session, dict(inputs), outputs)
        results: list[Array] = session.run(list(outputs), dict(inputs))
        return results

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._shared.clear()
            self._alone.clear()

    def _session(self, graph: GraphSpec, num_threads: int, *, is_spinning: bool = False) -> ort.InferenceSession:
        path = self._bundle.path / graph.file
        if self._provider == _CPU:
            return open_session(path, num_threads, is_spinning=is_spinning)
        session = open_session(path, num_threads, provider=self._provider, options=self._cuda.provider_options())
        if nodes := misplaced(assignments(session), self._provider):
            names = ", ".join(f"{node.op} {node.node}" for node in nodes[:5])
            raise StartupError(f"{path}: {len(nodes)} heavy nodes were left to the CPU under {self._provider}: {names}")
        return session


def open_session(
    path: Path,
    num_threads: int,
    *,
    provider: str = _CPU,
    options: Mapping[str, str] = _NO_OPTIONS,
    is_spinning: bool = False,
) -> ort.InferenceSession:
    """A session as the service runs it. Raises StartupError: not loadable, or not on the provider.

    is_spinning: threads wait for the next operator of a call awake: for calls that have the machine to themselves.
    """
    path = path.resolve()  # external data is looked for beside the real file
    try:
        session = ort.InferenceSession(
            str(path),
            sess_options=session_options(num_threads, is_spinning=is_spinning),
            # The CPU stays behind CUDA for shapes and other small integers.
            providers=[(provider, dict(options)), *([_CPU] if provider != _CPU else [])],
            # SkipLayerNormalization is slower on CPU than the Add and LayerNormalization that it replaces.
            disabled_optimizers=["SkipLayerNormFusion"],
        )
    except Exception as error:
        raise StartupError(f"{path}: ONNX Runtime cannot load the graph: {error}") from error
    if session.get_providers()[0] != provider:
        raise StartupError(f"{path}: asked for {provider}, the session runs on {session.get_providers()[0]}")
    return session


def session_options(num_threads: int, *, is_spinning: bool = False) -> ort.SessionOptions:
    """Options of every CPU session: no spinning between calls, no log but errors."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if is_spinning else "0")
    return options


def check_session(graph: GraphSpec, session: ort.InferenceSession) -> None:
    """Compare a session's names, types and axes with the manifest. Raises StartupError with every difference."""
    faults = _differences("input", graph.inputs, session.get_inputs())
    faults += _differences("output", graph.outputs, session.get_outputs())
    if faults:
        raise StartupError(f"{graph.file}: not what the manifest says: " + "; ".join(faults))


def _differences(kind: str, specs: Sequence[TensorSpec], found: Sequence[Any]) -> list[str]:
    present = {node.name: node for node in found}
    faults = [f"{kind} {name}: in the graph, not in the manifest" for name in present.keys() - {s.name for s in specs}]
    for spec in specs:
        node = present.get(spec.name)
        if node is None:
            faults.append(f"{kind} {spec.name}: in the manifest, not in the graph")
        elif node.type != _TYPES[spec.dtype] or list(node.shape) != list(spec.axes):
            faults.append(
                f"{kind} {spec.name}: manifest says {_TYPES[spec.dtype]} {list(spec.axes)}, "
                f"graph has {node.type} {node.shape}"
            )
    return sorted(faults)


def _role(role: str) -> Role:
    return "attend" if role == "attend" else "encode"
