"""Signals before the server has handlers of its own. The standard library alone: they are set before all else loads."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def leave(*_: object) -> NoReturn:
    """End the process now, well."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def leave_on_signals() -> None:
    """From now on a signal ends the process with code 0; the first process of a container would ignore it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
