"""The servers under measurement: processes of their own, stopped (SIGSTOP) whenever it is not their turn."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from bench.load import Job, Load
from loadtest.server import free_port
from loadtest.target import is_ready
from qkv import __version__
from service.runners.cpus import usable_cpus

_READY_TIMEOUT_S = 120.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ready_s: from its start to the first 200 of `/health/ready`; idle_mib: resident memory then."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    ready_s: float
    idle_mib: float

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run for the time of the block."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def resident_mib(self) -> float:
        """Resident memory now."""
        return _resident_mib(self.process.pid)

    def stop(self) -> None:
        """End it: politely, then not."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_server(name: str, command: Sequence[str], port: int) -> Server:
    """Start a server, wait until it is ready, put it to sleep. Raises RuntimeError when it never gets ready."""
    start_s = time.perf_counter()
    # A file takes every line at once; a terminal or a full pipe would slow the server.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=subprocess.STDOUT)
        while not is_ready(f"http://127.0.0.1:{port}"):
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"{name}: ended with code {process.returncode}: {log.read()[-2000:].decode()}")
            if time.perf_counter() - start_s > _READY_TIMEOUT_S:
                process.kill()
                raise RuntimeError(f"{name}: not ready within {_READY_TIMEOUT_S:.0f} s")
            time.sleep(0.02)
    server = Server(name, port, process, time.perf_counter() - start_s, _resident_mib(process.pid))
    process.send_signal(signal.SIGSTOP)
    return server


def start_ours(bundle: Path) -> Server:
    """`qkv serve` with every default."""
    port = free_port()
    return start_server("qkv", ["-m", "qkv", "serve", str(bundle), "--port", str(port)], port)


def start_naive(model_dir: Path) -> Server:
    """The naive server of `bench.naive`."""
    port = free_port()
    return start_server("naive", ["-m", "bench.naive", str(model_dir), str(port)], port)


def put_load(server: Server, job: Job) -> Load:
    """Wake the server, load it from a process of its own, put it to sleep again."""
    with server.awake():
        result = subprocess.run(
            [sys.executable, "-m", "bench.load"], input=json.dumps(asdict(job)), text=True, capture_output=True
        )
    if result.returncode:
        raise RuntimeError(f"{server.name}: the load generator failed: {result.stderr.strip().splitlines()[-1]}")
    return Load(**json.loads(result.stdout))


def _resident_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / _MIB


def machine() -> dict[str, str]:
    """What the numbers were measured on, and with."""
    packages = ("onnxruntime", "tokenizers", "fastapi", "uvicorn", "torch", "sentence-transformers")
    return {
        "cpu": f"{_cpu_name()}, {usable_cpus()} cores",
        "load average": f"{os.getloadavg()[0]:.1f} at the start",
        "python": sys.version.split()[0],
        "qkv": __version__,
    } | {name: version(name) for name in packages}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
