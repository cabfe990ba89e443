"""From a run and its limits to verdicts. Pure functions; a fault is a sentence with what was measured and the limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from loadtest.capacity import Capacity
from loadtest.samples import Samples, count_wrong, figures, longest_gap_s
from loadtest.shapes import Stage, thirds
from loadtest.thresholds import Thresholds

# A 99th percentile of fewer is one or two replies.
MIN_P99_SAMPLES = 100
MIN_MEMORY_SAMPLES = 3
_NUM_SLICES = 5  # of a third


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured. memory_mib: (seconds since the start, resident MiB) of a server that we started, else None.

    lateness_ms: of the load generator, 95th percentile: how much of each latency may be its own.
    """

    shape: str
    stages: tuple[Stage, ...]
    kinds: tuple[str, ...]
    samples: Samples
    lateness_ms: float
    memory_mib: tuple[tuple[float, float], ...] | None = None

    @property
    def judged(self) -> list[Stage]:
        """The stages that count."""
        return [stage for stage in self.stages if stage.is_judged]

    def gap_s(self, stage: Stage) -> float:
        """The longest stretch of a stage without a right reply, see `longest_gap_s`."""
        return longest_gap_s(self.samples.taken, stage.start_s, stage.end_s)

    def drifts(self, stage: Stage) -> Iterator[Drift]:
        """From the first third of a stage to the last, by kind and of all together."""
        for kind in (*self.kinds, None):
            (num_first, first_ms), _, (num_last, last_ms) = (self._usual_p99(part, kind) for part in thirds(stage))
            yield Drift(kind, min(num_first, num_last), first_ms, last_ms)

    def _usual_p99(self, part: tuple[float, float], kind: str | None) -> tuple[int, float]:
        """-> number of right replies, the median of the slices' 99th percentiles: one stall is no drift"""
        bounds = np.linspace(*part, _NUM_SLICES + 1)
        slices = [figures(self.samples.between(*pair, kind), 1.0) for pair in pairwise(bounds)]
        return sum(one.num_right for one in slices), median(one.p99_ms for one in slices)


@dataclass(frozen=True, slots=True)
class Drift:
    """The 99th percentile in the first and in the last third of a stage. kind: None = of all together; num_right:
    replies in the third that has fewer."""

    kind: str | None
    num_right: int
    first_ms: float
    last_ms: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """faults: what was missed; notes: what could not be judged, and why."""

    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()


def judge(run: Run, limits: Thresholds) -> Verdict:
    """Every limit that the run missed."""
    faults = [*_replies(run, limits), *_generator(run.lateness_ms, limits), *_rate(run, limits)]
    notes: list[str] = []
    for stage in run.judged:
        faults += [*_gap(run, stage, limits), *_latencies(run, stage, limits, notes)]
    if run.shape == "soak":
        for stage in run.judged:
            faults += _drift(run, stage, limits, notes)
            faults += _growth(run, stage, limits, notes)
    return Verdict(tuple(faults), tuple(notes))


def judge_capacity(run: Run, capacity: Capacity, limits: Thresholds) -> Verdict:
    """Verdicts of a capacity search: overload was looked for, so that refused and late replies are forgiven, but not
    where it was said that the load was within the targets."""
    num_wrong = count_wrong(run.samples.taken)
    faults = [*_compared(run, limits)] if run.samples.taken else ["There was no reply at all."]
    if num_wrong:
        faults.append(f"{num_wrong} replies were wrong, not late: {_worst_fault(run)}.")
    if not capacity.users:
        faults.append("Not even one user was served within the targets (p95_ms).")
    notes: list[str] = []
    faults += [*_failed_after(run, capacity), *_never_right(run, notes)]
    return Verdict(tuple(faults), tuple(notes))


def _failed_after(run: Run, capacity: Capacity) -> Iterator[str]:
    for step in capacity.within:
        late = [one for one in run.samples.between(step.start_s, step.end_s) if one.is_overload]
        if late:
            yield (
                f"{step.users} users were within the targets, but {len(late)} of their requests failed afterwards: "
                f"{late[0].kind}: {late[0].fault}."
            )


def _never_right(run: Run, notes: list[str]) -> Iterator[str]:
    for kind in run.kinds:
        replies = [one for one in run.samples.taken if one.kind == kind]
        if not replies:
            notes.append(f"{kind}: no request was sent, so nothing is judged.")
        elif all(one.fault is not None for one in replies):
            yield f"{kind}: none of {len(replies)} replies was right."


def _replies(run: Run, limits: Thresholds) -> Iterator[str]:
    taken = run.samples.taken
    if not taken:
        yield "There was no reply at all."
        return
    num_faults = run.samples.num_faults
    if num_faults > limits.max_failure_ratio * len(taken):
        yield (
            f"{num_faults} of {len(taken)} replies failed ({num_faults / len(taken):.2%}); "
            f"{limits.max_failure_ratio:.2%} are allowed (max_failure_ratio). Most often: {_worst_fault(run)}."
        )
    yield from _compared(run, limits)


def _compared(run: Run, limits: Thresholds) -> Iterator[str]:
    share = run.samples.compared_share
    if share < limits.min_compared_share:
        yield (
            f"{share:.2%} of the well-formed replies were compared with a known answer; "
            f"{limits.min_compared_share:.2%} are needed (min_compared_share)."
        )


def _worst_fault(run: Run) -> str:
    (kind, reason), count = run.samples.faults.most_common(1)[0]
    return f"{kind}: {run.samples.details.get(reason, reason)} ({count} times)"


def _generator(lateness_ms: float, limits: Thresholds) -> Iterator[str]:
    if lateness_ms > limits.max_lateness_ms:
        yield (
            f"The load generator was {lateness_ms:.0f} ms late; above {limits.max_lateness_ms:g} ms (max_lateness_ms) "
            "its own delay, not the server's, may be what was measured."
        )


def _rate(run: Run, limits: Thresholds) -> Iterator[str]:
    length_s = sum(stage.end_s - stage.start_s for stage in run.judged)
    right = [
        one for stage in run.judged for one in run.samples.between(stage.start_s, stage.end_s) if one.fault is None
    ]
    if len(right) < limits.min_per_s * length_s:
        yield f"{len(right) / length_s:.2f} right replies came by second; {limits.min_per_s:g} are needed (min_per_s)."


def _gap(run: Run, stage: Stage, limits: Thresholds) -> Iterator[str]:
    if (gap_s := run.gap_s(stage)) > limits.max_gap_s:
        yield (
            f"{stage.name}: for {gap_s:.1f} s requests waited and no right reply came; "
            f"at most {limits.max_gap_s:g} s are allowed (max_gap_s)."
        )


def _latencies(run: Run, stage: Stage, limits: Thresholds, notes: list[str]) -> Iterator[str]:
    for kind in run.kinds:
        found = figures(run.samples.between(stage.start_s, stage.end_s, kind), stage.end_s - stage.start_s)
        if not found.num_replies:
            notes.append(f"{kind}, {stage.name}: no request was sent, so nothing is judged.")
        elif not found.num_right:
            yield f"{kind}, {stage.name}: none of {found.num_replies} replies was right."
        for name, value, limit, key in (
            ("the 95th percentile", found.p95_ms, limits.p95_ms, "p95_ms"),
            ("the 99th percentile", found.p99_ms, limits.p99_ms, "p99_ms"),
            ("the slowest reply", found.max_ms, limits.max_ms, "max_ms"),
        ):
            if value > limit.of(kind):
                yield (
                    f"{kind}, {stage.name}: {name} was {value:.0f} ms; "
                    f"at most {limit.of(kind):g} ms are allowed ({key}.{kind})."
                )


def _drift(run: Run, stage: Stage, limits: Thresholds, notes: list[str]) -> Iterator[str]:
    for drift in run.drifts(stage):
        name = drift.kind or "all kinds"
        if drift.num_right < MIN_P99_SAMPLES:
            notes.append(
                f"{name}: the drift of the 99th percentile is not judged by {drift.num_right} replies in a third."
            )
        elif drift.last_ms > drift.first_ms * limits.soak.max_p99_ratio + limits.soak.p99_slack_ms:
            yield (
                f"{name}: the 99th percentile rose from {drift.first_ms:.0f} ms in the first third to "
                f"{drift.last_ms:.0f} ms in the last; "
                f"{limits.soak.max_p99_ratio:g} times and {limits.soak.p99_slack_ms:g} ms are allowed "
                "(soak.max_p99_ratio, soak.p99_slack_ms)."
            )


def _growth(run: Run, stage: Stage, limits: Thresholds, notes: list[str]) -> Iterator[str]:
    if run.memory_mib is None:
        notes.append("Memory is not judged: the server is not a process that this run started.")
        return
    # Caches and pools fill during the first third; a leak goes on.
    _, *parts = thirds(stage)
    readings = [[mib for time_s, mib in run.memory_mib if start_s <= time_s < end_s] for start_s, end_s in parts]
    if min(map(len, readings)) < MIN_MEMORY_SAMPLES:
        yield "Memory was read too seldom to judge it; a longer soak is needed."
        return
    second, last = map(median, readings)
    # Between the middles of the two thirds, where the medians are.
    start_s, end_s = map(median, parts)
    num_replies = len(run.samples.between(start_s, end_s))
    allowed_mib = limits.soak.memory_slack_mib + num_replies * limits.soak.max_growth_bytes_per_reply / 2**20
    if last - second > allowed_mib:
        yield (
            f"The server's memory grew from {second:.1f} MiB in the second third to {last:.1f} MiB in the last, with "
            f"{num_replies} replies between; {limits.soak.max_growth_bytes_per_reply:g} bytes for each and "
            f"{limits.soak.memory_slack_mib:g} MiB are allowed "
            "(soak.max_growth_bytes_per_reply, soak.memory_slack_mib)."
        )
