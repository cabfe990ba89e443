"""Which tokens of a text that is too long stay: what `tokenizers` does for `longest_first`, as a pure function.

Cutting here leaves the shared tokenizer unchanged and keeps the count of tokens before the cut.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from service.runners.base import Array

SPECIAL = -1  # in a column of sequences
ABSENT = -1  # in a column of offsets


def kept_positions(sequences: Array, limit: int, side: Literal["left", "right"]) -> Array | None:
    """Positions that stay, in order; None when the special tokens alone are over the limit.

    sequences: `[seq]` int64, 0 = the text, 1 = its pair, -1 = special; special tokens always stay.
    side: the side of each text that is cut.
    """
    first, second = (np.flatnonzero(sequences == number) for number in (0, 1))
    budget = limit - (len(sequences) - len(first) - len(second))
    if budget < 0:
        return None
    num_first, num_second = share(len(first), len(second), budget)
    kept = [np.flatnonzero(sequences == SPECIAL), _cut(first, num_first, side), _cut(second, num_second, side)]
    return np.sort(np.concatenate(kept))


def share(num_first: int, num_second: int, budget: int) -> tuple[int, int]:
    """Lengths of a text and its pair within a budget: the longer one is cut first, then both to half each.

    Of an odd budget the longer one has the odd token, the second one when both are as long.
    """
    if num_first + num_second <= budget:
        return num_first, num_second
    shorter = min(num_first, num_second, budget // 2)
    longer = budget - shorter
    return (longer, shorter) if num_first > num_second else (shorter, longer)


def _cut(positions: Array, count: int, side: Literal["left", "right"]) -> Array:
    return positions[:count] if side == "right" else positions[len(positions) - count :]
