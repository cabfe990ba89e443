"""What is measured, and the floors that a release must reach: tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of load. texts: a kind of `bench.texts`. per_request: texts in one request.

    min_share: least share of the in-process ceiling; min_ratio: least ratio to the naive server; None = shown only.
    """

    texts: str
    clients: int
    per_request: int = 1
    min_share: float | None = None
    min_ratio: float | None = None

    @property
    def name(self) -> str:
        """Short enough for a table and for `--only`."""
        return f"{self.texts}{'' if self.per_request == 1 else f'x{self.per_request}'}@{self.clients}"


CELLS = (
    Cell("passage", 1),
    Cell("passage", 8),
    Cell("passage", 32, min_share=0.80, min_ratio=2),
    Cell("short", 1, min_ratio=3),
    Cell("short", 8),
    Cell("short", 32, min_share=0.65, min_ratio=8),
    Cell("mixed", 1),
    Cell("mixed", 8),
    Cell("mixed", 32),
    Cell("mixed", 1, per_request=32, min_ratio=4),
)


def find_cells(names: list[str] | None) -> list[Cell]:
    """The cells of these names, all without names. Raises ValueError naming what is not a cell."""
    by_name = {cell.name: cell for cell in CELLS}
    if unknown := [name for name in names or () if name not in by_name]:
        raise ValueError(f"no cell named {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in names] if names else list(CELLS)
