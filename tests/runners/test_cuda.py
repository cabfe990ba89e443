"""What stops CUDA is named: the package, the driver, the libraries or the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from service.runners import cuda


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_up(*, providers: list[str], absent: tuple[str, ...] = (), status: int = 0, devices: int = 1) -> None:
        def load(name: str) -> object:
            if name in absent:
                raise OSError(name)
            return SimpleNamespace(cuInit=lambda _: status, cuDeviceGetCount=lambda count: _count(count, devices))

        monkeypatch.setattr("onnxruntime.get_available_providers", lambda: providers)
        monkeypatch.setattr("onnxruntime.preload_dlls", lambda: None, raising=False)
        monkeypatch.setattr("ctypes.CDLL", load)

    return set_up


def _count(pointer: object, devices: int) -> int:
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = devices  # type: ignore[arg-type]
    return 0


def test_the_cpu_package_has_no_cuda_provider(machine: Callable[..., None]) -> None:
    machine(providers=["CPUExecutionProvider"])
    assert "install the gpu extra" in str(cuda.missing_cuda())


BOTH = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({"absent": ("libcuda.so.1",)}, "driver is missing: libcuda.so.1"),
        ({"absent": ("libcublas.so.13", "libcudnn.so.9")}, "missing: libcublas.so.13, libcudnn.so.9"),
        ({"status": 100}, "CUDA error 100"),
        ({"devices": 0}, "sees no device"),
    ],
)
def test_what_is_missing_is_named(machine: Callable[..., None], faults: dict[str, object], expected: str) -> None:
    machine(providers=BOTH, **faults)
    assert expected in str(cuda.missing_cuda())


def test_nothing_is_missing_where_all_is_there(machine: Callable[..., None]) -> None:
    machine(providers=BOTH)
    assert cuda.missing_cuda() is None
