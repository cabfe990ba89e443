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


# One of these on the CPU carries every activation over the bus and back.
HEAVY_OPS = frozenset(
    {
        "Attention",
        "BatchMatMul",
        "Einsum",
        "FusedGemm",
        "FusedMatMul",
        "Gemm",
        "MatMul",
        "MultiHeadAttention",
        "Softmax",
    }
)


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
    return [node for node in nodes if node.op in HEAVY_OPS and node.provider != provider]


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
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return (
            "this onnxruntime has no CUDA provider: install the gpu extra (onnxruntime-gpu) in place of the cpu extra"
        )
    if not _loads(_DRIVER):
        return f"the NVIDIA driver is missing: {_DRIVER} cannot be loaded"
    ort.preload_dlls()
    if missing := [name for name in _LIBRARIES if not _loads(name)]:
        return f"CUDA 13 or cuDNN 9 libraries are missing: {', '.join(missing)} cannot be loaded"
    return _no_device(device_id)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _no_device(device_id: int) -> str | None:
    driver = ctypes.CDLL(_DRIVER)
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the NVIDIA driver answers with CUDA error {status}"
    if not count.value:
        return "the NVIDIA driver sees no device"
    if device_id >= count.value:
        return f"QKV_DEVICE_ID={device_id}: the NVIDIA driver sees {count.value} devices, the last is {count.value - 1}"
    return None
