"""A tiny bundle to measure, and a server that costs nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="session")
def tiny_bundle(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's bundle."""
    out = tmp_path_factory.mktemp("bundles") / "tiny"
    code = "import sys; sys.modules['torch'] = None; from qkv.__main__ import main; main()"
    words = ["export", str(tiny_models / "bert_mean"), "--out", str(out), "--unproved"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


class Echo(BaseHTTPRequestHandler):
    """Answers a body with itself, two hundred times over, in two pieces; `bad` in it makes the answer a 500."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = body * 200
        self.send_response(500 if b"bad" in body else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer[:100])
        self.wfile.flush()
        self.wfile.write(answer[100:])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def echo_port() -> Iterator[int]:
    """The port of a running `Echo`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()
