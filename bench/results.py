"""From rounds of measurements to medians, ratios and verdicts. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.cells import Cell
from bench.load import Load

MAX_GENERATOR_CORES = 0.1


@dataclass(frozen=True, slots=True)
class Round:
    """One interleaved turn of a cell. ceilings: requests by second in-process, by thread layout."""

    ceilings: dict[str, float]
    ours: Load
    naive: Load


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the rounds of one cell. share and ratio: medians of the quotients within each round."""

    cell: Cell
    layout: str
    ceiling: float
    ours: float
    naive: float
    share: float
    ratio: float
    p50_ms: float
    p99_ms: float
    generator_cores: float
    num_errors: int

    @property
    def faults(self) -> list[str]:
        """Every floor that was missed and every reason not to believe the numbers."""
        cell = self.cell
        faults = []
        if cell.min_share is not None and self.share < cell.min_share:
            faults.append(f"{cell.name}: {self.share:.2f} of the ceiling, {cell.min_share:.2f} wanted")
        if cell.min_ratio is not None and self.ratio < cell.min_ratio:
            faults.append(f"{cell.name}: {self.ratio:.1f} × naive, {cell.min_ratio:.0f} × wanted")
        if self.generator_cores >= MAX_GENERATOR_CORES:
            faults.append(f"{cell.name}: the load generator took {self.generator_cores:.2f} cores")
        if self.num_errors:
            faults.append(f"{cell.name}: {self.num_errors} answers were not 200")
        return faults


def summarise(cell: Cell, rounds: Sequence[Round]) -> Result:
    """The medians of a cell. The thread layout with the highest median is the ceiling, the same one for every round."""
    layout = max(rounds[0].ceilings, key=lambda name: median(turn.ceilings[name] for turn in rounds))
    return Result(
        cell=cell,
        layout=layout,
        ceiling=median(turn.ceilings[layout] for turn in rounds),
        ours=median(turn.ours.requests_per_s for turn in rounds),
        naive=median(turn.naive.requests_per_s for turn in rounds),
        share=median(turn.ours.requests_per_s / turn.ceilings[layout] for turn in rounds),
        ratio=median(turn.ours.requests_per_s / turn.naive.requests_per_s for turn in rounds),
        p50_ms=median(turn.ours.p50_ms for turn in rounds),
        p99_ms=median(turn.ours.p99_ms for turn in rounds),
        generator_cores=max(max(turn.ours.generator_cores, turn.naive.generator_cores) for turn in rounds),
        num_errors=sum(turn.ours.num_errors + turn.naive.num_errors for turn in rounds),
    )
