"""`python -m bench.precision BUNDLE OTHER`: how much faster one precision of a model is than another, and how far off.

Both graphs in this process, in turns, each under its own best thread layout: a ratio of one run, no server. What the
vectors are apart is told by cosine, over the same texts, and how many have the same nearest neighbour.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.ceiling import Ceiling, layouts
from bench.texts import make_texts
from service.engine.batch import Row
from service.manifest import TOKENIZER

_KINDS = ("short", "passage", "mixed")
_CLIENTS = (1, 32)
_NUM_TEXTS = 256


@dataclass(frozen=True, slots=True)
class Ratio:
    """Texts by second of the first bundle over those of the second, the median of the rounds."""

    kind: str
    clients: int
    per_s: tuple[float, float]
    ratio: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.precision", description=__doc__)
    parser.add_argument("bundle", type=Path, help="the one that should be faster")
    parser.add_argument("other", type=Path, help="the one that it is compared with")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each, in turns")
    parser.add_argument("--window-s", type=float, default=2.0, help="seconds of one measurement")
    options = parser.parse_args()
    pair = [Ceiling(path) for path in (options.bundle, options.other)]
    names = [f"{one.bundle.manifest.name} {one.bundle.manifest.precision}" for one in pair]
    table = Table(title=f"{names[0]} against {names[1]}")
    for heading in ("texts", "clients", *(f"{name}: by s" for name in names), "ratio"):
        table.add_column(heading, justify="right")
    for ratio in (measure(pair, kind, clients, options) for kind in _KINDS for clients in _CLIENTS):
        numbers = (f"{value:.1f}" for value in ratio.per_s)
        table.add_row(ratio.kind, str(ratio.clients), *numbers, f"{ratio.ratio:.2f}")
    console = Console()
    console.print(table)
    console.print(compare(*(vectors(one) for one in pair)))


def measure(pair: Sequence[Ceiling], kind: str, clients: int, options: argparse.Namespace) -> Ratio:
    """Both in turns, so that what else the machine does falls on both."""
    rows = [[[row] for row in one.rows(_texts(one, kind))] for one in pair]

    def best(index: int) -> float:
        window_s = options.window_s / len(layouts())
        return max(pair[index].measure(layout, rows[index], clients=clients, window_s=window_s) for layout in layouts())

    rounds = [(best(0), best(1)) for _ in range(options.rounds)]
    per_s = tuple(median(one[index] for one in rounds) for index in (0, 1))
    return Ratio(kind, clients, (per_s[0], per_s[1]), median(first / second for first, second in rounds))


def vectors(one: Ceiling) -> NDArray[np.float32]:
    """The vectors of texts of every kind, each alone. -> `[texts, dim]`, of length 1"""
    rows: list[Row] = [row for kind in _KINDS for row in one.rows(_texts(one, kind))]
    found = np.concatenate([one.pooled([row]) for row in rows])
    unit: NDArray[np.float32] = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


def compare(found: NDArray[np.float32], expected: NDArray[np.float32]) -> str:
    """How far vectors are from others of the same texts. found, expected: `[texts, dim]`, of length 1"""
    cosines = (found * expected).sum(axis=1)
    kept = np.mean(_nearest(found) == _nearest(expected))
    return f"cosines: least {cosines.min():.4f}, mean {cosines.mean():.4f}; the nearest text is the same for {kept:.1%}"


def _nearest(vectors: NDArray[np.float32]) -> NDArray[np.intp]:
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    nearest: NDArray[np.intp] = cosines.argmax(axis=1)
    return nearest


def _texts(one: Ceiling, kind: str) -> list[str]:
    return make_texts(kind, _NUM_TEXTS, one.bundle.file(TOKENIZER))


if __name__ == "__main__":
    main()
