"""Every request of a run from its sending to its reply, and the clock of the run. Knows Locust's event, not Locust."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loadtest.errors import BadReply
from loadtest.samples import Sample, Samples


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without a reply. ms: how long it has waited; its latency will be more."""

    kind: str
    start_s: float
    ms: float


class Recorder:
    """Listens to Locust's `request` event; the users tell it what they send. clock: as Locust's, since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.samples = Samples()
        self._clock = clock
        self._start_s = clock()
        self._open: dict[object, tuple[str, float]] = {}

    def now_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start_s

    def restart(self) -> None:
        """Forget every reply; the run starts now."""
        self.samples = Samples()
        self._start_s = self._clock()

    @contextmanager
    def sending(self, kind: str) -> Iterator[None]:
        """For the time of the block a request of that kind waits for its reply."""
        key = object()
        self._open[key] = (kind, self._clock())
        try:
            yield
        finally:
            del self._open[key]

    def waiting(self, start_s: float, end_s: float) -> list[Waiting]:
        """Those that were sent in that stretch of time and have no reply now."""
        now_s, run_s = self._clock(), self._start_s
        waiting = [Waiting(kind, sent_s - run_s, 1000 * (now_s - sent_s)) for kind, sent_s in self._open.values()]
        return [one for one in waiting if start_s <= one.start_s < end_s]

    def unanswered(self, start_s: float, end_s: float) -> tuple[str, ...]:
        """Kinds of which requests waited in some part of that time and none got a right reply.

        Those from before count, too: they hold the users who would send the next.
        """
        samples, waiting = self.samples.open_in(start_s, end_s), self.waiting(-math.inf, end_s)
        asked = {sample.kind for sample in samples} | {one.kind for one in waiting}
        return tuple(sorted(asked - {sample.kind for sample in samples if sample.fault is None}))

    def __call__(
        self, name: str, response_time: float, start_time: float, context: Mapping[str, Any], **more: Any
    ) -> None:
        """Record one reply. name: its kind; response_time: ms; start_time: seconds since the epoch."""
        error = more.get("exception")
        reason = None if error is None else error.reason if isinstance(error, BadReply) else repr(error)
        is_overload = isinstance(error, BadReply) and error.is_overload
        is_compared = bool(context.get("is_compared"))
        sample = Sample(name, start_time - self._start_s, response_time, is_compared, reason, is_overload)
        self.samples.record(sample, "" if error is None else str(error))
