"""A server that costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


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
