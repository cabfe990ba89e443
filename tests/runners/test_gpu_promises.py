"""What is promised of a GPU, with the CPU in its place: what sessions are asked, how they run, what ends the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.bundle import Bundle, open_bundle
from service.engine.engine import Engine, warm_lengths
from service.errors import StartupError
from service.manifest import Manifest
from service.runners import cuda, ort
from service.runners.base import Array
from service.runners.cuda import Assignment
from service.runners.ort import CPU, CUDA, OrtRunner
from service.settings import Settings

OPEN_SESSION = ort.open_session
RUN_BOUND = cuda.run_bound
Bound = list[tuple[tuple[int, ...], Sequence[str]]]


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle[Manifest]:
    return open_bundle(tiny_bundle)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """CUDA is there, and its sessions are the CPU's. -> what each session was asked for"""
    sessions: list[SimpleNamespace] = []

    def open_session(path: Path, num_threads: int, **asked: Any) -> Any:
        sessions.append(SimpleNamespace(file=path.name, **asked))
        return OPEN_SESSION(path, num_threads)

    monkeypatch.setattr(ort, "check_cuda", lambda device_id: None)
    monkeypatch.setattr(ort, "open_session", open_session)
    return sessions


@pytest.fixture
def placed(opened: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """As `opened`, and every node runs where it should."""
    monkeypatch.setattr(ort, "misplaced", lambda nodes, provider: [])
    return opened


@pytest.fixture
def bound(placed: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> Bound:
    """The shape of the ids and the outputs of every bound run."""
    runs: Bound = []

    def run_bound(session: Any, inputs: dict[str, Array], outputs: Sequence[str]) -> list[Array]:
        runs.append((inputs["input_ids"].shape, outputs))
        return RUN_BOUND(session, inputs, outputs)

    monkeypatch.setattr(ort, "run_bound", run_bound)
    return runs


def test_heavy_nodes_on_the_cpu_end_the_start(opened: list[SimpleNamespace], bundle: Bundle[Manifest]) -> None:
    with pytest.raises(StartupError, match=r"encode\.onnx: \d\d heavy nodes were left to the CPU under CUDA"):
        OrtRunner.open(bundle, device="cuda")


def test_auto_takes_the_cpu_when_a_graph_that_no_request_has_used_is_misplaced(
    opened: list[SimpleNamespace], bundle: Bundle[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of attention alone, which the CPU loads at its first use."""

    def misplaced(nodes: Sequence[Assignment], provider: str) -> Sequence[Assignment]:
        return nodes[:1] if opened[-1].file == "attend.onnx" else []

    monkeypatch.setattr(ort, "misplaced", misplaced)
    with pytest.raises(StartupError, match=r"attend\.onnx: 1 heavy nodes"):
        OrtRunner.open(bundle, device="cuda")
    assert OrtRunner.open(bundle, device="auto").info().provider == CPU


def test_on_the_cpu_attention_waits_for_its_first_use(
    bundle: Bundle[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []

    def open_session(path: Path, num_threads: int, **asked: Any) -> Any:
        files.append(path.name)
        return OPEN_SESSION(path, num_threads, **asked)

    monkeypatch.setattr(ort, "open_session", open_session)
    Engine.start(bundle, Settings(num_threads=1))
    assert files == ["encode.onnx"]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {"device_id": "0", "use_tf32": "0"}),
        (
            {"device_id": 3, "gpu_memory_bytes": 2**31, "tf32": True},
            {
                "device_id": "3",
                "use_tf32": "1",
                "gpu_mem_limit": "2147483648",
                "arena_extend_strategy": "kSameAsRequested",
            },
        ),
    ],
    ids=["by default", "by settings"],
)
def test_settings_reach_every_session(
    placed: list[SimpleNamespace], bundle: Bundle[Manifest], settings: dict[str, Any], options: dict[str, str]
) -> None:
    engine = Engine.start(bundle, Settings(device="cuda", **settings))
    assert engine.runner_info().provider == CUDA
    assert [(one.file, one.provider, one.options) for one in placed] == [
        ("encode.onnx", CUDA, options),
        ("attend.onnx", CUDA, options),
    ]


def test_the_device_of_the_settings_is_the_one_that_is_looked_at(
    placed: list[SimpleNamespace], bundle: Bundle[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(ort, "check_cuda", looked_at.append)
    Engine.start(bundle, Settings(device="cuda", device_id=5))
    assert looked_at == [5]


def test_a_run_binds_what_is_asked(bound: Bound, bundle: Bundle[Manifest]) -> None:
    ids = np.arange(5, 11).reshape(2, 3)
    inputs = {"input_ids": ids, "attention_mask": ids**0, "token_type_ids": ids * 0, "pooling_mask": ids**0}
    runner = OrtRunner.open(bundle, device="cuda")
    for is_alone in (False, True):
        (found,) = runner.run("encode", inputs, ["pooled"], is_alone=is_alone)
        np.testing.assert_array_equal(found, OrtRunner.open(bundle).run("encode", inputs, ["pooled"])[0])
    assert bound == [((2, 3), ["pooled"])] * 2


def test_every_length_is_warmed_alone_and_in_a_full_call(bound: Bound, bundle: Bundle[Manifest]) -> None:
    Engine.start(bundle, Settings(device="cuda", max_call_tokens=200))
    lengths = [2, 4, 8, 16, 32, 64]  # the model takes 64
    wanted = [shape for length in lengths for shape in ((1, length), (200 // length, length))]
    # The probes come before.
    assert [shape for shape, _ in bound][-len(wanted) :] == wanted


def test_the_lengths_are_powers_of_two_up_to_the_longest() -> None:
    assert warm_lengths(CUDA, 512) == [2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert warm_lengths(CUDA, 100) == [2, 4, 8, 16, 32, 64, 100]
    assert warm_lengths(CPU, 512) == [64]


@pytest.mark.parametrize(("device", "fails"), [("cuda", True), ("cpu", False)])
def test_on_a_gpu_the_graph_of_attention_is_proved_at_the_start(
    placed: list[SimpleNamespace],
    bundle: Bundle[Manifest],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    fails: bool,
) -> None:
    run = OrtRunner.run

    def spoil(
        self: OrtRunner, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], **how: bool
    ) -> list[Array]:
        found = run(self, role, inputs, outputs, **how)
        return [values * 2 for values in found] if role == "attend" else found

    monkeypatch.setattr(OrtRunner, "run", spoil)
    if fails:
        with pytest.raises(StartupError, match=r"attend\.onnx does not give the stored outputs"):
            Engine.start(bundle, Settings(device=device))
    else:
        Engine.start(bundle, Settings(device=device))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What ONNX Runtime itself is asked for, by sessions that come up where they should."""
    calls: list[dict[str, Any]] = []

    def session(path: str, **options: Any) -> SimpleNamespace:
        calls.append(options)
        return SimpleNamespace(get_providers=lambda: [options["providers"][0][0]])

    monkeypatch.setattr("onnxruntime.InferenceSession", session)
    return calls


def test_the_cpu_stays_behind_cuda_and_fusions_are_left_to_it(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    OPEN_SESSION(tmp_path / "any.onnx", 1, provider=CUDA, options={"use_tf32": "0"})
    OPEN_SESSION(tmp_path / "any.onnx", 1)
    assert [call["providers"] for call in asked] == [[(CUDA, {"use_tf32": "0"}), CPU], [(CPU, {})]]
    # Faster there, slower here.
    assert [call["disabled_optimizers"] for call in asked] == [[], ["SkipLayerNormFusion", "BiasGeluFusion"]]


@pytest.mark.parametrize(
    "op",
    "Attention MultiHeadAttention GroupQueryAttention QAttention MatMul FusedMatMul MatMulNBits MatMulInteger "
    "QLinearMatMul Gemm GemmFloat8 Softmax LogSoftmax BiasSoftmax Einsum Conv FusedConv LSTM GRU".split(),
)
def test_an_operator_of_this_name_is_heavy(op: str) -> None:
    nodes = [Assignment(CPU, op, "node"), Assignment(CUDA, op, "node")]
    assert cuda.misplaced(nodes, CUDA) == nodes[:1]


@pytest.mark.parametrize("op", "Shape Gather Concat Unsqueeze Cast Add LayerNormalization Gelu Where".split())
def test_an_operator_of_another_name_is_not(op: str) -> None:
    assert cuda.misplaced([Assignment(CPU, op, "node")], CUDA) == []
