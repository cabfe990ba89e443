"""The two figures, from what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from claims.cost import Cost
from claims.recall import DISTANCES, MAX_TRAINED, MODELS, NUM_SYMBOLS, SCHEDULES, Recall

# Told apart without colour too: by their marks and lines, and in this order everywhere.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
)
DPI = 150
MARGIN = 4  # steps beside the first and the last distance


def draw_cost(cost: Cost, file: Path) -> None:
    """Milliseconds against length, both axes logarithmic: a power of the length is a straight line."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for (name, by_length), style in zip(cost.milliseconds.items(), STYLES, strict=True):
        label = f"{name}: × {cost.growth(name):.1f} at the last doubling"
        axes.plot(list(by_length), list(by_length.values()), label=label, **style)
    lengths = list(next(iter(cost.milliseconds.values())))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_yscale("log")
    axes.set(
        xlabel="length (positions)",
        ylabel="processor time of one pass (ms)",
        title="Cost against length, one row, one core",
    )
    _finish(axes)
    axes.legend(loc="upper left")
    _save(figure, file)


def draw_recall(results: Sequence[Recall], file: Path) -> None:
    """Accuracy against distance, one panel a schedule; lines are means over seeds, bands reach from worst to best."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, len(SCHEDULES), sharey=True)
    for axes, (schedule, title) in zip(panels, SCHEDULES.items(), strict=True):
        _draw_schedule(axes, [result for result in results if result.schedule == schedule])
        axes.set(xlabel="steps since the first symbol", title=f"Trained on {title}")
    panels[0].set_ylabel("recalled (share of test sequences)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    _save(figure, file)


def _draw_schedule(axes: Axes, results: Sequence[Recall]) -> None:
    for name, style in zip(MODELS, STYLES, strict=True):
        by_seed = [[result.accuracy[distance] for distance in DISTANCES] for result in results if result.model == name]
        at_each = list(zip(*by_seed, strict=True))
        axes.fill_between(DISTANCES, [*map(min, at_each)], [*map(max, at_each)], color=style["color"], alpha=0.15)
        axes.plot(DISTANCES, [statistics.mean(values) for values in at_each], label=name, **style)
    axes.axhline(1 / NUM_SYMBOLS, color="black", linewidth=1, linestyle=":", label=f"chance (1 in {NUM_SYMBOLS})")
    axes.axvspan(MAX_TRAINED, DISTANCES[-1] + MARGIN, color="0.93", zorder=0, label="longer than any trained on")
    axes.set(xlim=(-MARGIN, DISTANCES[-1] + MARGIN), ylim=(0, 1.04))
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.grid(visible=True, color="0.88")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, file: Path) -> None:
    figure.savefig(file, dpi=DPI, metadata={"Software": None})  # the same bytes from the same numbers
