"""What stops an export: one error that carries every fault found, so that a run ends with the whole list."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import printable


class ExportError(Exception):
    """The source, the graph contract or the proof is not what it must be: nothing was written.

    message: one line, what was tried. faults: every fault found, each naming file, key and value.
    What a terminal would not print is escaped in both. The command line prints them and exits with 1.
    """

    def __init__(self, message: str, faults: Sequence[str] = ()) -> None:
        self.message = printable(message)
        self.faults = tuple(map(printable, faults))
        super().__init__(self.message)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  - {fault}" for fault in self.faults)])
