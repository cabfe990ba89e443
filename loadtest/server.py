"""`qkv serve` as a process of its own, for the time of a run."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from loadtest.errors import LoadTestError
from loadtest.target import is_ready

_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]

    def resident_mib(self) -> float:
        """Resident memory now, of it and of what it started; 0 when it has ended."""
        try:
            parent = psutil.Process(self.process.pid)
            return float(sum(one.memory_info().rss for one in (parent, *parent.children(recursive=True)))) / _MIB
        except psutil.NoSuchProcess:
            return 0.0


@contextmanager
def serving(bundle: Path) -> Iterator[Server]:
    """A ready server over a bundle or a model directory, stopped afterwards.

    Raises LoadTestError with its last words when it does not get ready, or does not end well.
    """
    port = free_port()
    command = [sys.executable, "-m", "qkv", "serve", str(bundle), "--port", str(port)]
    # A file takes every line at once; a full pipe would stop the server.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            server = Server(f"http://127.0.0.1:{port}", process)
            _wait_ready(server, lambda: _last_words(log))
            yield server
            process.terminate()
            if code := process.wait(_STOP_TIMEOUT_S):
                raise LoadTestError(f"the server ended with code {code}: {_last_words(log)}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(server: Server, last_words: Callable[[], str]) -> None:
    started_s = time.monotonic()
    while not is_ready(server.url):
        if (code := server.process.poll()) is not None:
            raise LoadTestError(f"the server ended with code {code}: {last_words()}")
        if time.monotonic() - started_s > _READY_TIMEOUT_S:
            raise LoadTestError(f"the server was not ready within {_READY_TIMEOUT_S:.0f} s: {last_words()}")
        time.sleep(0.05)


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"
