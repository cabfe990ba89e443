"""CUDA: whether it can really be used, how it is asked to compute, and what must not be left to the CPU.

ONNX Runtime falls back to the CPU without a word, for a whole session or for single operators: both are looked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.errors import StartupError
from service.runners.base import Array
from service.runners.library import ort

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


# CUDA 13, as the driver counts versions: driver 580 or newer.
_MIN_DRIVER = 13_000
_CUDA_ERROR_NO_DEVICE = 100

# In the name of every operator, fused and quantized ones too, that on the CPU would carry each activation over the bus
# and back.
_HEAVY = ("Attention", "Conv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN", "Softmax")


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """How CUDA computes. memory_bytes: most device memory for one session's arena, 0 = no limit of ours.

    is_tf32_allowed: matrix products may keep 10 of a float32's 23 bits of mantissa, which is no float32 any more.
    """

    device_id: int = 0
    memory_bytes: int = 0
    is_tf32_allowed: bool = False

    def provider_options(self) -> dict[str, str]:
        """As ONNX Runtime names them."""
        options = {"device_id": str(self.device_id), "use_tf32": str(int(self.is_tf32_allowed))}
        if self.memory_bytes:
            # By default the arena doubles whenever it grows, past any limit that would have been enough.
            options |= {"gpu_mem_limit": str(self.memory_bytes), "arena_extend_strategy": "kSameAsRequested"}
        return options


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one node of a loaded graph runs."""

    provider: str
    op: str
    node: str


def assignments(session: ort.InferenceSession) -> list[Assignment]:
    """Where every node runs. Needs the session option `session.record_ep_graph_assignment_info`."""
    return [
        Assignment(part.ep_name, node.op_type, node.name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def misplaced(nodes: Sequence[Assignment], provider: str) -> list[Assignment]:
    """The heavy nodes that run elsewhere; shapes and other small integers are better off on the CPU."""
    return [node for node in nodes if any(part in node.op for part in _HEAVY) and node.provider != provider]


def run_bound(session: ort.InferenceSession, inputs: dict[str, Array], outputs: Sequence[str]) -> list[Array]:
    """Run with bound inputs and outputs: each input crosses the bus once, and of the outputs only the ones asked for.

    -> host arrays, in the order asked
    """
    binding = session.io_binding()
    for name, values in inputs.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(values))
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    arrays: list[Array] = binding.copy_outputs_to_cpu()
    return arrays


def check_cuda(device_id: int) -> None:
    """Raises StartupError naming what stops CUDA from working."""
    if (reason := missing_cuda(device_id)) is not None:
        raise StartupError(f"no usable GPU: {reason}")


def missing_cuda(device_id: int = 0) -> str | None:
    """The first thing that stops CUDA from working, in words; None when nothing does."""
    if (reason := missing_gpu() or _driver_fault(device_id)) is not None:
        return reason
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return (
            "this onnxruntime has no CUDA provider: install the gpu extra (onnxruntime-gpu) in place of the cpu extra"
        )
    ort.preload_dlls()
    if missing := [name for name in _LIBRARIES if not _loads(name)]:
        return f"CUDA 13 or cuDNN 9 libraries are missing: {', '.join(missing)} cannot be loaded"
    return None


def missing_gpu() -> str | None:
    """Why there is no GPU here, in words; None when there is one, whether it works or not."""
    if not _loads(_DRIVER):
        return f"the NVIDIA driver is missing: {_DRIVER} cannot be loaded"
    status, num_devices = _devices()
    if status == _CUDA_ERROR_NO_DEVICE or (status == 0 and not num_devices):
        return "the NVIDIA driver sees no device"
    return None


def _driver_fault(device_id: int) -> str | None:
    """What is wrong with the driver, or with the device asked for."""
    status, num_devices = _devices()
    if status != 0:
        return f"the NVIDIA driver answers with CUDA error {status}"
    version = ctypes.c_int()
    ctypes.CDLL(_DRIVER).cuDriverGetVersion(ctypes.byref(version))
    if version.value < _MIN_DRIVER:
        found = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return f"the NVIDIA driver is for CUDA {found}, and CUDA 13 needs version 580 or newer"
    if device_id >= num_devices:
        return f"QKV_DEVICE_ID={device_id}: the NVIDIA driver sees {num_devices} devices, the last is {num_devices - 1}"
    return None


def _devices() -> tuple[int, int]:
    """-> the driver's status, the number of devices"""
    driver, count = ctypes.CDLL(_DRIVER), ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return int(status), count.value


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
