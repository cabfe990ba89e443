"""What the numbers of both commands may be. A NaN is within no bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends belong to it."""

    least: float
    most: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"at least {self.least:g}" if self.most == math.inf else f"from {self.least:g} to {self.most:g}"


WAIT_S = Bounds(0, 3600)
TIMEOUT_S = Bounds(0.1, 3600)
KNOWN_SHARE = Bounds(0.01, 1)
NUM_WORDS = Bounds(3)
DURATION_S = Bounds(2, 30 * 86_400)
STEP_S = Bounds(0.5, 3600)
TARGET_MS = Bounds(1, 3_600_000)
