"""What stops an export: one error that carries every fault found, so that a run ends with the whole list."""

from __future__ import annotations

from collections.abc import Sequence


class ExportError(Exception):
    """The source, the graph contract or the proof is not what it must be: nothing was written.

    message: one line, what was tried. faults: every fault found, each naming file, key and value.
    The command line prints both and exits with 1.
    """

    def __init__(self, message: str, faults: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  - {fault}" for fault in self.faults)])
