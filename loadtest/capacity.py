"""The search for the highest number of users within the targets. Pure: it is given a way to try a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtest.samples import Figures

_START = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One number of users that was tried. start_s, end_s: when its requests were sent, since the start of the run.

    unanswered: kinds of which requests waited in that time and none got a right reply. lateness_ms: of the load
    generator, see `Pulse`. excess: why it is too many; None = within the targets.
    """

    users: int
    start_s: float
    end_s: float
    per_s: float
    p95_ms: Mapping[str, float]
    unanswered: tuple[str, ...]
    lateness_ms: float
    excess: str | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was found. users: 0 = not even one is within the targets. most: the search went no higher."""

    users: int
    most: int
    steps: tuple[Step, ...]

    @property
    def within(self) -> list[Step]:
        """The steps that were within the targets."""
        return [step for step in self.steps if step.excess is None]

    @property
    def per_s(self) -> float:
        """Replies by second at that number of users."""
        return next((step.per_s for step in self.within if step.users == self.users), 0.0)

    @property
    def bound(self) -> str:
        """What stopped the search: the reason of the lowest number of users that was too many."""
        over = [step for step in self.steps if step.users > self.users]
        lowest = min(over, key=lambda step: step.users, default=None)
        return f"no more than {self.most} users were tried" if lowest is None else str(lowest.excess)


def search(is_within: Callable[[int], bool], *, most: int, start: int = _START, tolerance: float = 0.1) -> int:
    """The highest number of users within the targets, from 0 (not even one) to `most`.

    Doubles until a number is too many, then halves the gap until it is at most `tolerance` of the lower end.
    is_within: tries a number; assumed to hold up to some number and not above it.
    """
    good, bad = 0, most + 1
    users = min(start, most)
    while bad - good > max(1, int(tolerance * good)):
        if is_within(users):
            good = users
        else:
            bad = users
        users = min(2 * good, most) if bad > most else (good + bad) // 2
    return good


def find_excess(
    step: Step, total: Figures, *, wait_s: float, targets_ms: Mapping[str, float], max_lateness_ms: float
) -> str | None:
    """Why a step is above the targets; None = it is not. total: of all kinds together."""
    if step.lateness_ms > max_lateness_ms:
        return f"the load generator was {step.lateness_ms:.0f} ms late: the server could have served more"
    if not total.num_right:
        return "there was no right reply"
    if total.num_faults:
        return f"{total.num_faults} of {total.num_replies} replies failed"
    if step.unanswered:
        return f"{', '.join(step.unanswered)}: requests waited, and none got a right reply"
    if late := {kind: ms for kind, ms in step.p95_ms.items() if ms > targets_ms[kind]}:
        kind = max(late, key=lambda name: late[name] / targets_ms[name])
        return f"{kind}: the 95th percentile was {late[kind]:.0f} ms, {targets_ms[kind]:g} ms wanted"
    # Little's law also counts the requests that have no reply yet and therefore no latency.
    mean_ms = 1000 * (step.users / total.per_s - wait_s)
    if mean_ms > max(targets_ms.values()):
        return f"requests took {mean_ms:.0f} ms on average, those without a reply counted"
    return None
