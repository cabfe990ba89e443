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

from service.bundle import Bundle
from service.errors import StartupError
from service.graph_spec import GraphSpec, Role, TensorSpec
from service.manifest import Manifest
from service.runners.base import Array, RunnerInfo
from service.runners.cpus import default_threads
from service.runners.cuda import CudaOptions, assignments, check_cuda, misplaced, run_bound
from service.runners.library import ort

Device = Literal["cpu", "cuda", "auto"]
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
DEFAULT_CUDA = CudaOptions()
# Longer than most gaps between operators, and shorter than what another program would miss: at ONNX Runtime's own
# milliseconds, a lone call beside a busy neighbour takes twice as long as without.
LONE_SPIN_US = 50
# On the CPU, SkipLayerNormalization is slower than the Add and LayerNormalization that it replaces, and BiasGelu than
# Add and Gelu.
SLOWER_FUSIONS = ("SkipLayerNormFusion", "BiasGeluFusion")
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

    def __init__(self, bundle: Bundle[Manifest], provider: str, num_threads: int, cuda: CudaOptions) -> None:
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
        cls, bundle: Bundle[Manifest], *, device: Device = "cpu", num_threads: int = 0, cuda: CudaOptions = DEFAULT_CUDA
    ) -> OrtRunner:
        """Choose the provider and load the `encode` graph; under CUDA every graph, to see where its nodes run.

        num_threads: CPU threads; 0 = `default_threads`.
        Raises StartupError: no usable GPU under `cuda` (naming what is missing), a graph that is not what the manifest
        says, or one of which CUDA leaves a heavy operator to the CPU.
        """
        num_threads = num_threads or default_threads()
        if device != "cpu":
            try:
                _check_graphs(bundle)
                check_cuda(cuda.device_id)
                return cls._opened(bundle, CUDA, num_threads, cuda)
            except StartupError as error:
                if device == "cuda":
                    raise
                _log.warning("QKV_DEVICE=auto: %s; running on %s", error, CPU)
        return cls._opened(bundle, CPU, num_threads, cuda)

    @classmethod
    def _opened(cls, bundle: Bundle[Manifest], provider: str, num_threads: int, cuda: CudaOptions) -> OrtRunner:
        runner = cls(bundle, provider, num_threads, cuda)
        for role in [graph.role for graph in bundle.manifest.graphs] if provider == CUDA else ["encode"]:
            runner.load(role)
        runner._info = RunnerInfo("onnxruntime", provider, num_threads, num_threads if provider == CPU else 1)
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
            check_session(graph, session, takes_one_row=self._bundle.manifest.batching == "alone")
            has_second = self._num_threads > 1 and self._provider == CPU
            self._alone[role] = self._session(graph, self._num_threads, spin_us=LONE_SPIN_US) if has_second else session
            self._shared[role] = session

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        if role not in self._shared:
            self.load(role)
        session = self._alone[role] if is_alone else self._shared[role]
        if self._provider == CUDA:
            return run_bound(session, dict(inputs), outputs)
        results: list[Array] = session.run(list(outputs), dict(inputs))
        return results

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._shared.clear()
            self._alone.clear()

    def _session(self, graph: GraphSpec, num_threads: int, *, spin_us: int = 0) -> ort.InferenceSession:
        path = self._bundle.path / graph.file
        if self._provider == CPU:
            return open_session(path, num_threads, spin_us=spin_us)
        session = open_session(path, num_threads, provider=self._provider, options=self._cuda.provider_options())
        if nodes := misplaced(assignments(session), self._provider):
            names = ", ".join(f"{node.op} {node.node}" for node in nodes[:5])
            raise StartupError(f"{path}: {len(nodes)} heavy nodes were left to the CPU under {self._provider}: {names}")
        return session


def _check_graphs(bundle: Bundle[Manifest]) -> None:
    """Raises StartupError for graphs that are not for CUDA."""
    if any("cuda" not in graph.providers for graph in bundle.manifest.graphs):
        raise StartupError(f"{bundle.path}: a bundle in {bundle.manifest.precision} runs on the CPU only")


def open_session(
    path: Path,
    num_threads: int,
    *,
    provider: str = CPU,
    options: Mapping[str, str] = _NO_OPTIONS,
    spin_us: int = 0,
) -> ort.InferenceSession:
    """A session as the service runs it. Raises StartupError: not loadable, or not on the provider.

    spin_us: microseconds that the threads of one call stay awake between its operators, 0 = they sleep at once.
    """
    path = path.resolve()  # external data is looked for beside the real file
    try:
        session = ort.InferenceSession(
            str(path),
            sess_options=session_options(num_threads, spin_us=spin_us),
            # The CPU stays behind CUDA for shapes and other small integers.
            providers=[(provider, dict(options)), *([CPU] if provider != CPU else [])],
            disabled_optimizers=list(SLOWER_FUSIONS) if provider == CPU else [],
        )
    except Exception as error:
        raise StartupError(f"{path}: ONNX Runtime cannot load the graph: {error}") from error
    if session.get_providers()[0] != provider:
        raise StartupError(f"{path}: asked for {provider}, the session runs on {session.get_providers()[0]}")
    return session


def session_options(num_threads: int, *, spin_us: int = 0) -> ort.SessionOptions:
    """Options of every CPU session: no spinning between calls, no log but errors."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin_us else "0")
    if spin_us:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_us))
    return options


def check_session(graph: GraphSpec, session: ort.InferenceSession, *, takes_one_row: bool = False) -> None:
    """Compare a session's names, types and axes with the manifest. Raises StartupError with every difference.

    takes_one_row: a call never has more rows than one, as the graph may say.
    """
    faults = _differences("input", graph.inputs, session.get_inputs(), takes_one_row)
    faults += _differences("output", graph.outputs, session.get_outputs(), takes_one_row)
    if faults:
        raise StartupError(f"{graph.file}: not what the manifest says: " + "; ".join(faults))


def _differences(kind: str, specs: Sequence[TensorSpec], found: Sequence[Any], takes_one_row: bool) -> list[str]:
    present = {node.name: node for node in found}
    faults = [f"{kind} {name}: in the graph, not in the manifest" for name in present.keys() - {s.name for s in specs}]
    for spec in specs:
        node = present.get(spec.name)
        if node is None:
            faults.append(f"{kind} {spec.name}: in the manifest, not in the graph")
        elif node.type != _TYPES[spec.dtype] or not _fits(node.shape, spec.axes, takes_one_row):
            faults.append(
                f"{kind} {spec.name}: manifest says {_TYPES[spec.dtype]} {list(spec.axes)}, "
                f"graph has {node.type} {node.shape}"
            )
    return sorted(faults)


def _fits(shape: Sequence[str | int], axes: Sequence[str | int], takes_one_row: bool) -> bool:
    first = [axes[0], 1] if takes_one_row else axes[:1]
    return len(shape) == len(axes) and list(shape[1:]) == list(axes[1:]) and shape[0] in first


def _role(role: str) -> Role:
    return "attend" if role == "attend" else "encode"
