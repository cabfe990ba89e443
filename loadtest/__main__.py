"""`python -m loadtest`."""

from __future__ import annotations

import sys

try:
    # First of all: it patches the process (gevent), and whatever is imported later must find it patched.
    import locust  # noqa: F401
except ModuleNotFoundError:
    sys.exit("loadtest: Locust is not installed: run `make loadtest`, or pip install '.[loadtest]'")

from loadtest.cli import app

if __name__ == "__main__":
    app(prog_name="python -m loadtest")
