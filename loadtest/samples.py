"""Every reply of a run, and figures over a stretch of time: exact ones, for Locust rounds its own to two digits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np


@dataclass(frozen=True, slots=True)
class Sample:
    """One reply. start_s: of its request, since the start of the run. is_compared: it stood beside a known answer;
    fault: why it does not count; is_overload: see BadReply."""

    kind: str
    start_s: float
    ms: float
    is_compared: bool = False
    fault: str | None = None
    is_overload: bool = False

    @property
    def end_s(self) -> float:
        """When the reply was there, since the start of the run."""
        return self.start_s + self.ms / 1000


@dataclass(frozen=True, slots=True)
class Figures:
    """Over one stretch of time. Latencies and the rate are of right replies only: a quick refusal is not speed."""

    num_replies: int
    num_faults: int
    num_wrong: int  # faults that overload does not excuse
    per_s: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @property
    def num_right(self) -> int:
        """Replies that count."""
        return self.num_replies - self.num_faults


@dataclass(slots=True)
class Samples:
    """What was recorded. faults: how often each was found, by kind and reason; details: one full message of each."""

    taken: list[Sample] = field(default_factory=list)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    _num_compared: int = 0
    _num_comparable: int = 0

    def record(self, sample: Sample, detail: str = "") -> None:
        """Take one more. detail: the full message of its fault."""
        self.taken.append(sample)
        self._num_compared += sample.is_compared
        self._num_comparable += sample.is_compared or sample.fault is None
        if sample.fault is not None:
            self.faults[sample.kind, sample.fault] += 1
            self.details.setdefault(sample.fault, detail)

    def between(self, start_s: float, end_s: float, kind: str | None = None) -> list[Sample]:
        """Those whose request was sent in a stretch of time: a late reply belongs to the load that made it late."""
        return [one for one in self.taken if start_s <= one.start_s < end_s and kind in (None, one.kind)]

    def open_in(self, start_s: float, end_s: float) -> list[Sample]:
        """Those that waited for their reply in some part of a stretch of time."""
        return [one for one in self.taken if one.start_s < end_s and one.end_s >= start_s]

    def since(self, start_s: float) -> list[Sample]:
        """About those whose request was sent since then, without a look at all the others."""
        return list(takewhile(lambda one: one.start_s >= start_s, reversed(self.taken)))

    @property
    def num_faults(self) -> int:
        """Replies that do not count."""
        return self.faults.total()

    @property
    def compared_share(self) -> float:
        """The share of the well-formed replies that stood beside a known answer; what failed before is left out."""
        return self._num_compared / max(1, self._num_comparable)


def figures(samples: Sequence[Sample], length_s: float, waiting_ms: Sequence[float] = ()) -> Figures:
    """Counts, rate and latencies of samples from a stretch of that length; latencies of nothing are 0.

    waiting_ms: for each request without a reply how long it has waited; that is the least that its latency will be.
    """
    right_ms = [one.ms for one in samples if one.fault is None]
    times = np.array([*right_ms, *waiting_ms])
    # Always a latency that was seen: a mean of two would depend on how long a request without a reply has waited.
    p50, p95, p99 = np.percentile(times, (50, 95, 99), method="inverted_cdf") if times.size else (0.0, 0.0, 0.0)
    return Figures(
        num_replies=len(samples),
        num_faults=len(samples) - len(right_ms),
        num_wrong=count_wrong(samples),
        per_s=len(right_ms) / length_s,
        mean_ms=float(times.mean()) if times.size else 0.0,
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        max_ms=float(times.max()) if times.size else 0.0,
    )


def longest_gap_s(samples: Sequence[Sample], start_s: float, end_s: float) -> float:
    """The longest part of start_s..end_s in which requests were sent or waited and no right reply came.

    A time without any request is no gap; one in which every reply is wrong is.
    """
    if not samples:
        return 0.0
    ordered = sorted(samples, key=lambda one: one.end_s)
    ends = np.array([one.end_s for one in ordered])
    # The earliest request among those that end from here on; after the last there is none.
    firsts = np.minimum.accumulate([np.inf, *(one.start_s for one in reversed(ordered))])[::-1]
    right = ends[[one.fault is None for one in ordered]]
    since, until = np.append(-np.inf, right), np.append(right, ends[-1])
    begins = np.maximum(np.maximum(since, firsts[np.searchsorted(ends, since, side="right")]), start_s)
    return max(0.0, float((np.minimum(until, end_s) - begins).max()))


def count_wrong(samples: Iterable[Sample]) -> int:
    """Faults that no load explains: wrong content, a crash, a closed connection."""
    return sum(one.fault is not None and not one.is_overload for one in samples)
