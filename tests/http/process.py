"""The service over a fake model, in a process of its own, and bare sockets to talk to it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx2

BODY = {"input": "the cat"}
JSON = {"content-type": "application/json"}

T = TypeVar("T")


class Process:
    """A server on a port that it chose itself."""

    def __init__(self, directory: Path, call_s: float, load_s: float, fault: str, settings: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.http.served", str(directory), str(call_s), str(load_s), fault]
        self.log_file = directory / "log"
        env = {**os.environ, "QKV_PORT": "0", **settings}
        with self.log_file.open("wb") as log:
            self.popen = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        self.url = self._find_url()
        self.port = int(self.url.rsplit(":", 1)[1])

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def _find_url(self) -> str:
        found = wait_for(lambda: re.search(r"listening on (\S+)", self.log), 20)
        return str(found[1])

    def post(self, **options: object) -> httpx2.Response:
        return httpx2.post(f"{self.url}/v1/encode", json=BODY, timeout=30, **options)  # type: ignore[arg-type]

    def status(self, path: str) -> int:
        return httpx2.get(self.url + path, timeout=5).status_code

    def wait_ready(self) -> Process:
        wait_for(lambda: self.status("/health/ready") == 200, 20)
        return self

    def metric(self, name: str) -> float:
        text = httpx2.get(f"{self.url}/metrics", timeout=5).text
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


def wait_for(probe: Callable[[], T | None], timeout_s: float) -> T:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"nothing within {timeout_s} s")


Start = Callable[..., Process]


def raw_request(body: bytes, *headers: str, path: str = "/v1/encode") -> bytes:
    head = [f"POST {path} HTTP/1.1", "host: test", "content-type: application/json", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def read_answer(connection: socket.socket, data: bytes = b"") -> tuple[int, bytes]:
    """One answer from a connection. data: its beginning, read before. -> status and body"""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        assert chunk, "the connection was closed without an answer"
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found
    parts = bytearray(body)
    while len(parts) < int(found[1]):
        chunk = connection.recv(65536)
        assert chunk, f"the connection was closed after {len(parts)} bytes of {int(found[1])}"
        parts += chunk
    return int(head.split()[1]), bytes(parts)
