"""The server as a process: starting, draining, ending. Over real sockets and a fake model."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx2
import psutil
import pytest

from service import health
from service.errors import StartupError
from service.server import listen
from service.settings import Settings
from tests.fixtures.live import spawn
from tests.http.process import Start, raw_request, read_answer, wait_for
from tests.http.test_bodies import check_error

pytestmark = pytest.mark.alone


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3])
def test_a_signal_at_any_moment_of_the_start_ends_well(
    tiny_bundle: Path, tmp_path: Path, number: signal.Signals, after_s: float
) -> None:
    server = spawn(tmp_path / "log", str(tiny_bundle))
    wait_for(lambda: "listening on" in server.log or server.process.poll() is not None, 20)
    time.sleep(after_s)
    server.process.send_signal(number)
    assert server.process.wait(10) == 0, server.log
    assert "Traceback" not in server.log


def test_a_signal_while_a_model_is_built_ends_the_build_too(tiny_models: Path, tmp_path: Path) -> None:
    server = spawn(tmp_path / "log", str(tiny_models / "mid"))
    parent = psutil.Process(server.process.pid)
    wait_for(parent.children, 20)
    (builder,) = parent.children()
    cache = tmp_path / "cache" / "qkv" / "bundles"
    wait_for(lambda: cache.is_dir() and any(cache.iterdir()), 30)
    server.process.terminate()
    assert server.process.wait(10) == 0, server.log
    builder.wait(10)
    assert list(cache.iterdir()) == []


def test_half_a_body_holds_no_drain_and_gets_the_error_of_every_other_refusal(start: Start) -> None:
    server = start().wait_ready()
    with closing(server.connect()) as connection:
        connection.sendall(raw_request(b'{"inp', "content-length: 1000"))
        wait_for(lambda: server.metric("qkv_ready") == 1, 5)
        started_s = time.monotonic()
        server.popen.send_signal(signal.SIGTERM)
        status, body = read_answer(connection)
    assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
    assert server.popen.wait(5) == 0
    assert time.monotonic() - started_s < 5
    assert "Traceback" not in server.log


def test_an_answer_on_its_way_is_finished_before_the_process_ends(start: Start) -> None:
    server = start().wait_ready()
    body = json.dumps({"input": "a " * 200_000}).encode()
    with closing(server.connect()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.sendall(raw_request(body, f"content-length: {len(body)}", path="/v1/tokenize"))
        first = connection.recv(1000)
        assert first.startswith(b"HTTP/1.1 200")
        server.popen.send_signal(signal.SIGTERM)
        time.sleep(2)  # longer than the server's last grace
        status, answer = read_answer(connection, first)
    assert status == 200
    assert len(json.loads(answer)["data"][0]["tokens"]) == 200_002
    assert server.popen.wait(5) == 0
