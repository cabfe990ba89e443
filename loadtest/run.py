"""A whole run: a shape played, or a capacity searched. Importing this patches the process (gevent)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from loadtest.capacity import Capacity, Step, find_excess, search
from loadtest.load import Load, Pulse
from loadtest.samples import Figures, figures
from loadtest.shapes import SHAPES
from loadtest.verdicts import Run

# Of a step of the search: until the load is what the number of users makes it.
_SETTLE_SHARE = 0.3
# A number of users is too many when it was so every time: one hiccup of the machine is not the capacity.
_NUM_TRIES = 2
_POLL_S = 0.05


def play(load: Load, shape: str, users: int, duration_s: float, kinds: tuple[str, ...]) -> Run:
    """Play a shape and wait for the last reply."""
    stages = SHAPES[shape](users, duration_s)
    with load.running() as pulse:
        load.play(stages)
    memory = tuple(load.memory_mib) if load.memory_mib else None
    return Run(shape, stages, kinds, load.recorder.samples, pulse.p95_ms, memory)


@dataclass(slots=True)
class Search:
    """The search for the capacity, one number of users after another. targets_ms: of the 95th
    percentile, by kind. on_step: told of each."""

    load: Load
    targets_ms: Mapping[str, float]
    max_lateness_ms: float
    wait_s: float
    step_s: float
    on_step: Callable[[Step], None]
    _steps: list[Step] = field(default_factory=list)

    def find(self, most: int) -> tuple[Run, Capacity]:
        """The highest number of users, up to `most`, within the targets; and all that was measured on the way."""
        with self.load.running() as pulse:
            users = search(lambda users: any(self._try(users, pulse) for _ in range(_NUM_TRIES)), most=most)
        # Overload was looked for: only the steps that are within the targets had to be on time.
        run = Run("capacity", (), tuple(self.targets_ms), self.load.recorder.samples, 0.0)
        return run, Capacity(users, most, tuple(self._steps))

    def _try(self, users: int, pulse: Pulse) -> bool:
        self.load.hold(users, _SETTLE_SHARE * self.step_s)
        start_s = self.load.recorder.now_s()
        pulse.restart()
        self.load.hold(users, (1 - _SETTLE_SHARE) * self.step_s)
        end_s, lateness_ms = self.load.recorder.now_s(), pulse.p95_ms
        # The slow ones are those that are not there yet: under the same load, until it is sure which are too slow.
        while any(one.ms <= self.targets_ms[one.kind] for one in self.load.recorder.waiting(0, end_s)):
            self.load.hold(users, _POLL_S)
        step = self._measure(users, (start_s, end_s), lateness_ms)
        self._steps.append(step)
        self.on_step(step)
        return step.excess is None

    def _measure(self, users: int, window: tuple[float, float], lateness_ms: float) -> Step:
        start_s, end_s = window
        waiting = self.load.recorder.waiting(start_s, end_s)

        def of(kind: str | None) -> Figures:
            waiting_ms = [one.ms for one in waiting if kind in (None, one.kind)]
            return figures(self.load.recorder.samples.between(start_s, end_s, kind), end_s - start_s, waiting_ms)

        total = of(None)
        p95_ms = {kind: of(kind).p95_ms for kind in self.targets_ms}
        step = Step(users, *window, total.per_s, p95_ms, self.load.recorder.unanswered(*window), lateness_ms, None)
        excess = find_excess(
            step, total, wait_s=self.wait_s, targets_ms=self.targets_ms, max_lateness_ms=self.max_lateness_ms
        )
        return replace(step, excess=excess)
