"""A server process over a fake model: `python -m tests.http.served DIRECTORY CALL_S LOAD_S [FAULT]`.

Settings come from the environment.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from service.bundle import Bundle
from service.errors import StartupError
from service.manifest import Manifest
from service.runners.base import FakeRunner
from service.server import serve
from service.settings import load_settings
from tests.fixtures.fakes import fake_bundle
from tests.http.conftest import fake_open


def main(directory: str, call_s: str, load_s: str, fault: str = "") -> int:
    """Serve; each call of the model takes `call_s`, loading takes `load_s` and fails when there is a fault."""

    def prepare() -> Bundle[Manifest]:
        time.sleep(float(load_s))
        if fault:
            raise StartupError(fault)
        return fake_bundle(Path(directory))

    runner = FakeRunner(on_call=lambda inputs: time.sleep(float(call_s)))
    return serve(load_settings()[0], prepare, open_engine=fake_open(runner))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
