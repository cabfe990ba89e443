"""Whether CUDA can really be used, and what is missing if not: ONNX Runtime falls back to the CPU without a word."""

from __future__ import annotations

import ctypes

import onnxruntime as ort

# What libonnxruntime_providers_cuda.so needs: the driver, then the CUDA 13 and cuDNN 9 libraries.
_DRIVER = "libcuda.so.1"
_LIBRARIES = (
    "libcudart.so.13",
    "libcublasLt.so.13",
    "libcublas.so.13",
    "libcurand.so.10",
    "libcufft.so.12",
    "libcudnn.so.9",
)


def missing_cuda() -> str | None:
    """The first thing that stops CUDA from working, in words; None when nothing does."""
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return (
            "this onnxruntime has no CUDA provider: install the gpu extra (onnxruntime-gpu) in place of the cpu extra"
        )
    if not _loads(_DRIVER):
        return f"the NVIDIA driver is missing: {_DRIVER} cannot be loaded"
    ort.preload_dlls()
    if missing := [name for name in _LIBRARIES if not _loads(name)]:
        return f"CUDA 13 or cuDNN 9 libraries are missing: {', '.join(missing)} cannot be loaded"
    return _no_device()


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _no_device() -> str | None:
    driver = ctypes.CDLL(_DRIVER)
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the NVIDIA driver answers with CUDA error {status}"
    return None if count.value else "the NVIDIA driver sees no device"
