"""A whole run: a shape played, or a capacity searched. Importing this patches the process (gevent)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loadtest.capacity import Capacity, Step, find_excess, search
from loadtest.load import Load
from loadtest.samples import figures
from loadtest.shapes import SHAPES
from loadtest.thresholds import Thresholds
from loadtest.verdicts import Run

# Of a step of the search: until the load is what the number of users makes it.
_SETTLE_SHARE = 0.3


def play(load: Load, shape: str, users: int, duration_s: float, kinds: tuple[str, ...]) -> Run:
    """Play a shape and wait for the last reply."""
    stages = SHAPES[shape](users, duration_s)
    meter = Meter()
    with load.running():
        load.play(stages)
        cores = meter.cores()
    memory = tuple(load.memory_mib) if load.memory_mib else None
    return Run(shape, stages, kinds, load.recorder.samples, cores, memory)


@dataclass(slots=True)
class Search:
    """The search for the capacity, one number of users after another. on_step: told of each."""

    load: Load
    kinds: tuple[str, ...]
    limits: Thresholds
    wait_s: float
    step_s: float
    on_step: Callable[[Step], None]
    _steps: list[Step] = field(default_factory=list)

    def find(self, most: int) -> tuple[Run, Capacity]:
        """The highest number of users, up to `most`, within the targets; and all that was measured on the way."""
        meter = Meter()
        with self.load.running():
            users = search(self._is_within, most=most)
            cores = meter.cores()
        run = Run("capacity", (), self.kinds, self.load.recorder.samples, cores)
        return run, Capacity(users, most, tuple(self._steps))

    def _is_within(self, users: int) -> bool:
        self.load.hold(users, _SETTLE_SHARE * self.step_s)
        start_s, meter = self.load.recorder.now_s(), Meter()
        self.load.hold(users, (1 - _SETTLE_SHARE) * self.step_s)
        step = self._measure(users, start_s, self.load.recorder.now_s(), meter.cores())
        self._steps.append(step)
        self.on_step(step)
        return step.excess is None

    def _measure(self, users: int, start_s: float, end_s: float, cores: float) -> Step:
        samples, length_s = self.load.recorder.samples, end_s - start_s
        by_kind = {kind: figures(samples.between(start_s, end_s, kind), length_s) for kind in self.kinds}
        total = figures(samples.between(start_s, end_s), length_s)
        step = Step(users, total.per_s, {kind: one.p95_ms for kind, one in by_kind.items()}, cores, None)
        return replace(step, excess=find_excess(step, total, wait_s=self.wait_s, limits=self.limits))


class Meter:
    """Processor time of this process, the load generator."""

    def __init__(self) -> None:
        self._start_s, self._cpu_s = time.monotonic(), time.process_time()

    def cores(self) -> float:
        """Seconds of processor time by second since the start."""
        return (time.process_time() - self._cpu_s) / (time.monotonic() - self._start_s)
