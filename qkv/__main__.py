"""The installed command `qkv`, and `python -m qkv`."""

from __future__ import annotations

import io
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line; never returns."""
    # Before anything that takes a moment: until it is handled, SIGTERM has no effect on process 1 of a container.
    signal.signal(signal.SIGTERM, _leave)
    # A path may hold bytes, and a terminal lack characters, that cannot be written: shown as escapes, never an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    from qkv.cli import app

    app(prog_name="qkv")


def _leave(sig: int, frame: FrameType | None) -> None:
    """A server that is stopped before it listens has nothing to finish; any other command is cut short."""
    is_serving = "serve" in sys.argv[1:2]
    sys.exit(0 if is_serving else 128 + sig)


if __name__ == "__main__":
    main()
