"""The server as a process: starting, draining, connections, limits. Over real sockets and a fake model."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import httpx2
import psutil
import pytest

from service import health
from service.errors import StartupError
from service.server import listen
from service.settings import Settings
from tests.http.test_bodies import check_error

BODY = {"input": "the cat"}

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


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(call_s=…, load_s=…, QKV_…=…)`: a server process, ended with the test."""
    processes: list[Process] = []

    def start_one(call_s: float = 0, load_s: float = 0, fault: str = "", **settings: str) -> Process:
        directory = tmp_path / str(len(processes))
        directory.mkdir()
        processes.append(Process(directory, call_s, load_s, fault, settings))
        return processes[-1]

    yield start_one
    for process in processes:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait(10)


def raw_request(body: bytes, *headers: str) -> bytes:
    head = ["POST /v1/encode HTTP/1.1", "host: test", "content-type: application/json", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """One answer from a connection. -> status and body"""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        assert chunk, "the connection was closed without an answer"
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found
    while len(body) < int(found[1]):
        body += connection.recv(65536)
    return int(head.split()[1]), body


def test_liveness_answers_at_once_and_readiness_only_when_loaded(start: Start) -> None:
    server = start(load_s=1.0)
    assert server.status("/health/live") == 200
    assert server.status("/health/ready") == 503
    early = server.post()
    check_error(early, 503, code="not_ready")
    assert 1 <= int(early.headers["retry-after"]) <= 120
    assert health.check(f"{server.url}/health/ready") is not None
    server.wait_ready()
    assert server.post().status_code == 200
    assert health.check(f"{server.url}/health/ready") is None
    command = [sys.executable, "-m", "service.health", f"{server.url}/health/ready"]
    assert subprocess.run(command, check=False).returncode == 0
    server.popen.terminate()
    server.popen.wait(10)
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1


def test_a_model_that_cannot_be_loaded_ends_the_process_with_one_line(start: Start) -> None:
    server = start(load_s=0.3, fault="manifest.json: name: a fault")
    assert server.popen.wait(10) == 1
    assert server.log.strip().splitlines()[-1].endswith("cannot start: manifest.json: name: a fault")
    assert "Traceback" not in server.log


def test_sigterm_finishes_what_is_in_flight_and_refuses_the_rest(start: Start) -> None:
    server = start(call_s=1.0).wait_ready()
    with ThreadPoolExecutor(9) as pool:
        old = [pool.submit(server.post) for _ in range(8)]
        wait_for(lambda: server.metric("qkv_requests_in_flight") == 8, 5)
        server.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: server.status("/health/ready") == 503, 0.5)
        check_error(server.post(), 503, code="draining")
        assert [answer.result().status_code for answer in old] == [200] * 8
    assert server.popen.wait(3) == 0


def test_the_listener_answers_503_until_the_drain_delay_is_over(start: Start) -> None:
    server = start(QKV_DRAIN_DELAY_S="1.0").wait_ready()
    started_s = time.monotonic()
    server.popen.send_signal(signal.SIGTERM)
    while time.monotonic() - started_s < 0.8:
        check_error(server.post(), 503) if server.status("/health/ready") == 503 else None
    check_error(server.post(), 503, code="draining")
    assert server.popen.wait(3) == 0


def test_a_request_that_outlives_the_drain_gets_an_answer_too(start: Start) -> None:
    server = start(call_s=30, QKV_DRAIN_TIMEOUT_S="1").wait_ready()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(server.post)
        wait_for(lambda: server.metric("qkv_requests_in_flight") == 1, 5)
        started_s = time.monotonic()
        server.popen.send_signal(signal.SIGTERM)
        check_error(late.result(), 503)
    assert server.popen.wait(5) == 0
    assert time.monotonic() - started_s < 3


def test_sigterm_while_loading_ends_at_once(start: Start) -> None:
    server = start(load_s=20)
    wait_for(lambda: server.status("/health/live") == 200, 5)
    server.popen.send_signal(signal.SIGTERM)
    assert server.popen.wait(3) == 0


def test_a_second_signal_ends_the_process_on_the_spot(start: Start) -> None:
    server = start(call_s=30).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(server.post)
        wait_for(lambda: server.metric("qkv_requests_in_flight") == 1, 5)
        server.popen.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(1) == 128 + signal.SIGTERM
        with pytest.raises(httpx2.TransportError):
            lost.result()


def test_an_idle_connection_outlives_a_load_balancers_timeout(start: Start) -> None:
    assert Settings().keep_alive_s >= 75
    server = start(QKV_KEEP_ALIVE_S="8").wait_ready()
    body = json.dumps(BODY).encode()
    request = raw_request(body, f"content-length: {len(body)}")
    with closing(server.connect()) as connection:
        connection.sendall(request)
        assert read_answer(connection)[0] == 200
        time.sleep(6)  # longer than uvicorn's own default
        connection.sendall(request)
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_413_and_never_held(start: Start, is_chunked: bool) -> None:
    limit = 4 * 2**20
    server = start(QKV_MAX_BODY_BYTES=str(limit)).wait_ready()
    memory = psutil.Process(server.popen.pid).memory_info
    idle = memory().rss
    block = b" " * 2**20
    with closing(server.connect()) as connection:
        started_s = time.monotonic()
        if is_chunked:
            connection.sendall(raw_request(b"", "transfer-encoding: chunked"))
            for _ in range(64):
                connection.sendall(b"100000\r\n" + block + b"\r\n")
            connection.sendall(b"0\r\n\r\n")
        else:
            connection.sendall(raw_request(b"", f"content-length: {5 * 2**20}"))
            for _ in range(5):
                connection.sendall(block)
        status, body = read_answer(connection)
        assert time.monotonic() - started_s < 2
        assert memory().rss - idle <= 3 * limit
        assert status == 413
        assert json.loads(body)["error"]["code"] == "body_too_large"
        good = json.dumps(BODY).encode()
        connection.sendall(raw_request(good, f"content-length: {len(good)}"))
        assert read_answer(connection)[0] == 200


def test_work_of_a_client_that_left_is_dropped(start: Start) -> None:
    # A call holds one row and takes 0.3 s: without dropping, twenty of them would be run, for six seconds.
    server = start(call_s=0.3, QKV_MAX_CALL_TOKENS="4").wait_ready()
    body = json.dumps(BODY).encode()
    waiting = [server.connect() for _ in range(20)]
    for connection in waiting:
        connection.sendall(raw_request(body, f"content-length: {len(body)}"))
    wait_for(lambda: server.metric("qkv_requests_in_flight") == 20, 5)
    for connection in waiting:
        connection.close()
    wait_for(lambda: server.metric("qkv_requests_in_flight") == 0, 1.5)
    wait_for(lambda: server.metric("qkv_queue_tokens") == 0, 1.5)
    assert server.metric('qkv_call_rows_sum{role="encode"}') <= 6
    assert "code=client_gone" in server.log
    assert "Traceback" not in server.log
    assert server.post().status_code == 200


@pytest.mark.parametrize("sent", [b'{"input":', b""], ids=["half of it", "not a byte of it"])
def test_a_body_that_does_not_come_ends_with_a_deadline(start: Start, sent: bytes) -> None:
    server = start(QKV_REQUEST_TIMEOUT_S="0.5").wait_ready()
    with closing(server.connect()) as connection:
        connection.sendall(raw_request(sent, "content-length: 100"))
        status, body = read_answer(connection)
    assert status == 504
    assert json.loads(body)["error"]["code"] == "deadline_exceeded"


def test_a_request_past_its_deadline_is_answered_and_what_it_left_is_dropped(start: Start) -> None:
    server = start(call_s=0.6, QKV_REQUEST_TIMEOUT_S="0.2").wait_ready()
    check_error(server.post(), 504, code="deadline_exceeded")
    assert server.status("/health/ready") == 200


def test_an_address_in_use_is_told_in_one_line() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"^cannot listen on 127\.0\.0\.1 port {port}: Address already in use$"):
            listen(Settings(port=port))


def test_a_bad_bundle_is_told_before_the_port_opens(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    for bundle in (tmp_path, tmp_path / "missing"):
        command = [sys.executable, "-m", "service", str(bundle), "--port", "0"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
        assert done.returncode == 1
        assert done.stderr.startswith("cannot start: ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://127.0.0.1:8000/health/ready"),
        ({"QKV_HOST": "0.0.0.0", "QKV_PORT": "9001"}, "http://127.0.0.1:9001/health/ready"),
        ({"QKV_HOST": "::", "QKV_PORT": "tcp://10.0.0.1:8000"}, "http://[::1]:8000/health/ready"),
        ({"QKV_HOST": "10.1.2.3"}, "http://10.1.2.3:8000/health/ready"),
    ],
)
def test_the_probe_asks_the_server_that_the_environment_configures(environ: dict[str, str], url: str) -> None:
    assert health.default_url(environ) == url
