"""`python -m bench.one_graph GRAPH SEQ THREADS`: one graph in a process of its own, that computes when it is told to.

Every line on its standard input is a turn, every line on its standard output the seconds of that turn; where the input
ends it says how much memory its calls took, in bytes, and ends. Knows no torch. Linux only: no other system tells the
most memory that a process had since it began.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from service.runners.ort import LONE_SPIN_US, open_session

_STATUS = Path("/proc/self/status")
_MIN_TURN_S = 0.3


def resident_bytes(field: str, status: Path = _STATUS) -> int:
    """Resident memory of this process: now (VmRSS), or the most it ever had (VmHWM)."""
    # Not getrusage: what it calls the peak begins with that of the process that started this one.
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def open_call(graph: Path, seq: int, num_threads: int) -> Callable[[], object]:
    """One call of a graph for all its outputs, with `hidden` [1, seq, dim] float32 and `mask` [1, seq] bool."""
    session = open_session(graph, num_threads, spin_us=LONE_SPIN_US if num_threads > 1 else 0)
    dim = session.get_inputs()[0].shape[2]
    hidden = np.random.default_rng(seq).standard_normal((1, seq, dim), dtype=np.float32)
    inputs = {"hidden": hidden, "mask": np.ones((1, seq), dtype=bool)}
    return lambda: session.run(None, inputs)


def turn(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The median seconds of one call, over as many as fit in a turn."""
    seconds: list[float] = []
    while sum(seconds) < _MIN_TURN_S:
        start_s = clock()
        call()
        seconds.append(clock() - start_s)
    return median(seconds)


def main() -> None:
    graph, seq, num_threads = sys.argv[1:]
    call = open_call(Path(graph), int(seq), int(num_threads))
    idle_bytes = resident_bytes("VmRSS")
    _tell("ready")
    for _ in sys.stdin:
        _tell(turn(call))
    # Loading may have had a peak of its own: then this is too much, never too little.
    _tell(resident_bytes("VmHWM") - idle_bytes)


def _tell(answer: str | float) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
