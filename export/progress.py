"""How an export tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable

# Called with what is done, steps done, and steps in all; 0 = not known.
Progress = Callable[[str, int, int], None]


def quiet(_title: str, _done: int, _total: int) -> None:
    """No progress was asked for."""
