"""Shapes of load: how many users there are, when, and which stretches count. Pure tables, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Of every stretch that counts: what comes before it, so that connections, caches and queues have settled.
_SETTLE_SHARE = 0.2
_NUM_STEPS = 5


@dataclass(frozen=True, slots=True)
class Stage:
    """So many users from start_s to end_s. is_judged: its latencies and rates count for the verdicts."""

    name: str
    start_s: float
    end_s: float
    users: int
    is_judged: bool = True


Shape = Callable[[int, float], tuple[Stage, ...]]


def steady(users: int, duration_s: float) -> tuple[Stage, ...]:
    """The same number of users throughout."""
    return tuple(_settled("steady", 0, duration_s, users))


def step(users: int, duration_s: float) -> tuple[Stage, ...]:
    """Up to that number in equal steps; every step counts."""
    stages: list[Stage] = []
    counts = sorted({max(1, round(users * number / _NUM_STEPS)) for number in range(1, _NUM_STEPS + 1)})
    for number, num_users in enumerate(counts):
        length_s = duration_s / len(counts)
        stages += _settled(f"{num_users} users", number * length_s, (number + 1) * length_s, num_users)
    return tuple(stages)


def spike(users: int, duration_s: float) -> tuple[Stage, ...]:
    """A quarter of the users, all of them for a fifth of the time, and a quarter again: before and after count."""
    base, first_s, last_s = max(1, users // 4), 0.4 * duration_s, 0.6 * duration_s
    return (
        *_settled("before", 0, first_s, base),
        Stage("spike", first_s, last_s, users, is_judged=False),
        *_settled("after", last_s, duration_s, base),
    )


def soak(users: int, duration_s: float) -> tuple[Stage, ...]:
    """The same number of users for long; memory and the 99th percentile are compared over time."""
    return tuple(_settled("soak", 0, duration_s, users))


SHAPES: dict[str, Shape] = {shape.__name__: shape for shape in (steady, step, spike, soak)}


def thirds(stage: Stage) -> tuple[tuple[float, float], ...]:
    """The three thirds of a stage, as (start_s, end_s)."""
    length_s = (stage.end_s - stage.start_s) / 3
    return tuple((stage.start_s + number * length_s, stage.start_s + (number + 1) * length_s) for number in range(3))


def _settled(name: str, start_s: float, end_s: float, users: int) -> list[Stage]:
    settled_s = start_s + _SETTLE_SHARE * (end_s - start_s)
    return [Stage("settling", start_s, settled_s, users, is_judged=False), Stage(name, settled_s, end_s, users)]
