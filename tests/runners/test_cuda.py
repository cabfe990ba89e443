"""What stops CUDA is named: the package, the driver, the libraries or the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from service.bundle import open_bundle
from service.errors import StartupError
from service.runners import cuda
from service.runners.library import ort
from service.runners.ort import OrtRunner, open_session

BOTH = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_up(
        *,
        providers: Sequence[str] = BOTH,
        absent: tuple[str, ...] = (),
        status: int = 0,
        devices: int = 1,
        version: int = 13_000,
    ) -> None:
        def load(name: str) -> object:
            if name in absent:
                raise OSError(name)
            return SimpleNamespace(
                cuInit=lambda _: status,
                cuDeviceGetCount=lambda count: _fill(count, devices),
                cuDriverGetVersion=lambda found: _fill(found, version),
            )

        monkeypatch.setattr("onnxruntime.get_available_providers", lambda: providers)
        monkeypatch.setattr("onnxruntime.preload_dlls", lambda: None, raising=False)
        monkeypatch.setattr("ctypes.CDLL", load)

    return set_up


def _fill(pointer: object, value: int) -> int:
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = value  # type: ignore[arg-type]
    return 0


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({"absent": ("libcuda.so.1",)}, "driver is missing: libcuda.so.1"),
        ({"status": 100}, "sees no device"),
        ({"devices": 0}, "sees no device"),
    ],
)
def test_a_machine_without_a_gpu_is_told_from_one_whose_gpu_does_not_work(
    machine: Callable[..., None], faults: dict[str, object], expected: str
) -> None:
    # Whatever else is missing: without a driver or a device nothing that is installed could help.
    machine(providers=["CPUExecutionProvider"], **faults)
    assert expected in str(cuda.missing_gpu())
    assert cuda.missing_cuda() == cuda.missing_gpu()


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({"providers": ["CPUExecutionProvider"]}, "install the gpu extra"),
        ({"absent": ("libcublas.so.13", "libcudnn.so.9")}, "missing: libcublas.so.13, libcudnn.so.9"),
        ({"status": 803}, "CUDA error 803"),
        ({"version": 12_090}, "the NVIDIA driver is for CUDA 12.9, and CUDA 13 needs version 580 or newer"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_named(
    machine: Callable[..., None], faults: dict[str, object], expected: str
) -> None:
    machine(**faults)
    assert cuda.missing_gpu() is None
    assert expected in str(cuda.missing_cuda())


def test_nothing_is_missing_where_all_is_there(machine: Callable[..., None]) -> None:
    machine()
    assert cuda.missing_cuda() is None


def test_a_device_that_is_not_there_is_named(machine: Callable[..., None]) -> None:
    machine(devices=2)
    assert cuda.missing_cuda(1) is None
    assert cuda.missing_cuda(2) == "QKV_DEVICE_ID=2: the NVIDIA driver sees 2 devices, the last is 1"


def test_tf32_is_off_and_memory_unlimited_unless_asked_otherwise() -> None:
    assert cuda.CudaOptions().provider_options() == {"device_id": "0", "use_tf32": "0"}
    chosen = cuda.CudaOptions(device_id=3, memory_bytes=2**31, is_tf32_allowed=True).provider_options()
    assert chosen == {
        "device_id": "3",
        "use_tf32": "1",
        "gpu_mem_limit": "2147483648",
        "arena_extend_strategy": "kSameAsRequested",
    }


@pytest.fixture(params=["encode", "attend"])
def session(request: pytest.FixtureRequest, tiny_bundle: Path) -> ort.InferenceSession:
    return open_session(open_bundle(tiny_bundle).file(f"{request.param}.onnx"), 1)


def test_every_heavy_operator_on_another_provider_is_found(session: ort.InferenceSession) -> None:
    nodes = cuda.assignments(session)
    assert cuda.misplaced(nodes, "CPUExecutionProvider") == []
    found = cuda.misplaced(nodes, "CUDAExecutionProvider")
    assert {node.op for node in found} >= {"Softmax"}
    assert {node.op for node in found} & {"Gemm", "MatMul"}
    # Two layers, each with four projections, two products of attention and two of the feed-forward part.
    assert len([node for node in found if node.op != "Softmax"]) >= 16


def test_a_bound_run_gives_what_is_asked_in_that_order_and_the_same_values(session: ort.InferenceSession) -> None:
    ids = np.random.default_rng(0).integers(0, 50, (3, 7))
    mask = np.ones_like(ids)
    mask[1, 4:] = 0
    inputs = {
        node.name: {"input_ids": ids, "token_type_ids": ids * 0}.get(node.name, mask) for node in session.get_inputs()
    }
    names = [node.name for node in session.get_outputs()][::-1]
    for asked in (names, names[:1]):
        expected = session.run(asked, inputs)
        for found, wanted in zip(cuda.run_bound(session, inputs, asked), expected, strict=True):
            assert np.array_equal(found, wanted)


def test_auto_falls_back_with_the_reason_when_the_session_does_not_come_up(
    machine: Callable[..., None], tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine()  # every library loads, and yet the session runs on the CPU
    bundle = open_bundle(tiny_bundle)
    with pytest.raises(StartupError, match="CUDAExecutionProvider"):
        OrtRunner.open(bundle, device="cuda")
    runner = OrtRunner.open(bundle, device="auto")
    assert runner.info().provider == "CPUExecutionProvider"
    assert "running on CPUExecutionProvider" in caplog.text
