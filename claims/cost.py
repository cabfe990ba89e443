"""What one pass costs at each length: full attention, windowed attention and a recurrent encoder, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models.multi_head import MultiHeadAttention
from models.recurrent import LstmEncoder

DIM = 64
NUM_HEADS = 2
WINDOW = 64
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
NUM_ROUNDS = 5
# A turn repeats the pass until it has taken this long: a clock's steps and a first touch of memory weigh little then.
TURN_S = 0.05

Pass = Callable[[Tensor], object]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of a processor for one pass over one row, by encoder and length: the fastest of rounds in turn."""

    milliseconds: Mapping[str, Mapping[int, float]]

    def growth(self, name: str) -> float:
        """Times the time when the longest length but one is doubled."""
        *_, before, last = self.milliseconds[name].values()
        return last / before


def make_encoders() -> dict[str, Pass]:
    """Each takes `[1, seq, DIM]`; all have the same width."""
    from models.local import SlidingWindowAttention

    torch.manual_seed(0)
    full, lstm = MultiHeadAttention(DIM, NUM_HEADS).eval(), LstmEncoder(DIM, DIM).eval()
    windowed = SlidingWindowAttention(DIM, NUM_HEADS, WINDOW).eval()
    return {
        "full attention": lambda hidden: full(hidden, hidden, hidden),
        f"windowed attention (±{WINDOW})": windowed,
        "LSTM": lstm,
    }


@torch.inference_mode()
def measure(advance: Callable[[], None]) -> Cost:
    """Every encoder at every length, round by round, so that what disturbs the machine disturbs all.

    All on one core, in processor time: others who wait for the core do not count.

    advance: called after each of the `num_turns()` turns
    """
    torch.set_num_threads(1)
    encoders = make_encoders()
    taken: dict[str, dict[int, list[float]]] = {name: {length: [] for length in LENGTHS} for name in encoders}
    for _ in range(NUM_ROUNDS):
        for length in LENGTHS:
            hidden = torch.randn(1, length, DIM)
            for name, encode in encoders.items():
                taken[name][length].append(_time_pass(encode, hidden))
                advance()
    return Cost(
        {name: {length: min(times) * 1000 for length, times in by_length.items()} for name, by_length in taken.items()}
    )


def num_turns() -> int:
    """How many turns `measure` takes."""
    return NUM_ROUNDS * len(LENGTHS) * 3


def _time_pass(encode: Pass, hidden: Tensor) -> float:
    """Seconds of processor time of one pass: the fastest of a turn, after one that warms up."""
    encode(hidden)
    return min(_passes(encode, hidden))


def _passes(encode: Pass, hidden: Tensor) -> Iterator[float]:
    end = time.thread_time() + TURN_S
    while True:
        start = time.thread_time()
        encode(hidden)
        now = time.thread_time()
        yield now - start
        if now > end:
            return
