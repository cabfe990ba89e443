"""The installed command `qkv`, and `python -m qkv`."""

from __future__ import annotations

import io
import signal
import sys

from service.signals import leave_on_signals


def main() -> None:
    """Run the command line; never returns."""
    # Before anything that takes a moment: until it is handled, SIGTERM has no effect on process 1 of a container.
    if "serve" in sys.argv[1:2]:
        leave_on_signals()
    else:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was begun is cleared up
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the bytes of a file name that are no text, in every locale
    from qkv.cli import app

    app(prog_name="qkv")


if __name__ == "__main__":
    main()
