"""The weights in float16: `derived.safetensors`, made from the published file.

Every number is rounded to the nearest float16, to the even one of two; what is too large for any is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from export.checkpoint import StoredTensor, read_header
from export.errors import ExportError

_LARGEST = float(np.finfo(np.float16).max)


def write_half(weights: Path, tensors: Mapping[str, StoredTensor], target: Path) -> dict[str, StoredTensor]:
    """Write tensors of a weights file as float16. -> canonical name → where it lies in `target`

    tensors: canonical name → where it lies in `weights`, float32. The same values give the same bytes, whatever the
    order. Raises ExportError naming every tensor that does not fit, and why.
    """
    published = np.memmap(weights, dtype=np.uint8, mode="r")
    halves, faults = {}, []
    for name, stored in sorted(tensors.items()):
        content = published[stored.offset : stored.offset + stored.num_bytes]
        values = np.frombuffer(content.tobytes(), dtype="<f4").reshape(stored.shape)
        halves[name] = _round(values)
        if not np.isfinite(halves[name]).all():
            faults.append(f"{name}: {_why(values)}")
    if faults:
        raise ExportError("the weights do not fit float16", faults)
    target.write_bytes(save(halves))
    return read_header(target)


def _why(values: NDArray[np.float32]) -> str:
    if num_nan := int(np.isnan(values).sum()):
        return f"{num_nan} of {values.size} values are NaN"
    return f"the largest value is {np.abs(values).max():g}, float16 ends at {_LARGEST:g}"


def _round(values: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):  # it becomes infinity, which is looked for
        return values.astype(np.float16)
