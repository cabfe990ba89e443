"""How fast both libraries multiply float32 matrices here: what no server over them can pass.

The ratio to the naive server on long texts is bounded by it: most of their time is this multiplication.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from service.runners.library import ort
from service.runners.ort import LONE_SPIN_US, session_options

# The larger half of a feed-forward layer of MiniLM, over the tokens of one call.
ROWS, INNER, COLUMNS = 1024, 384, 1536
_NUM_BLOCKS = 5


def matmul_peaks(num_threads: int, *, block_s: float = 0.2) -> dict[str, float]:
    """GFLOP/s of one product by library, the median of interleaved blocks."""
    rng = np.random.default_rng(0)
    left, right = (rng.random(shape, dtype=np.float32) for shape in ((ROWS, INNER), (INNER, COLUMNS)))
    products = {"onnxruntime": _by_onnxruntime(left, right, num_threads), "torch": _by_torch(left, right, num_threads)}
    rates: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(_NUM_BLOCKS):
        for name, multiply in products.items():
            rates[name].append(2 * ROWS * INNER * COLUMNS * _calls_per_s(multiply, block_s) / 1e9)
    return {name: median(values) for name, values in rates.items()}


def _by_onnxruntime(left: np.ndarray, right: np.ndarray, num_threads: int) -> Callable[[], object]:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["left", "right"], ["product"])],
        "matmul",
        [helper.make_tensor_value_info("left", TensorProto.FLOAT, left.shape)],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, [ROWS, COLUMNS])],
        [numpy_helper.from_array(right, "right")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = session_options(num_threads, spin_us=LONE_SPIN_US)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"left": left})


def _by_torch(left: np.ndarray, right: np.ndarray, num_threads: int) -> Callable[[], object]:
    torch.set_num_threads(num_threads)
    tensors = torch.from_numpy(left), torch.from_numpy(right)
    return lambda: tensors[0] @ tensors[1]


def _calls_per_s(call: Callable[[], object], block_s: float) -> float:
    call()
    count, start_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < block_s:
        call()
        count += 1
    return count / elapsed_s
