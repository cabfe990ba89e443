"""The frequencies of rotary positions, free of torch: one table for the PyTorch modules and for the graphs."""

from __future__ import annotations

import struct


def rotary_frequencies(head_dim: int, base: float) -> tuple[float, ...]:
    """What a position is multiplied by to give the angle of each pair of columns: `base ^ (-2 i / head_dim)`.

    Each step is rounded to float32, as PyTorch computes it: at position 4,096 a last bit of a frequency is 1e-4 of an
    angle. -> `head_dim / 2` numbers, each a float32
    """
    return tuple(_single(1 / _single(base ** _single(column / head_dim))) for column in range(0, head_dim, 2))


def _single(value: float) -> float:
    """The nearest float32."""
    nearest: float = struct.unpack("f", struct.pack("f", value))[0]
    return nearest
