"""Connections and bodies as the network brings them: late, large, halved, abandoned. Over real sockets."""

from __future__ import annotations

import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx2
import psutil
import pytest

from service.settings import Settings
from tests.http.process import BODY, JSON, Start, raw_request, read_answer, wait_for
from tests.http.test_bodies import check_error

pytestmark = pytest.mark.alone

QUEUE = 'qkv_queue_tokens{model="fake"}'


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
    wait_for(lambda: server.metric(QUEUE) == 0, 1.5)
    assert server.metric('qkv_call_rows_sum{model="fake",role="encode"}') <= 6
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
    server = start(call_s=1.0, QKV_REQUEST_TIMEOUT_S="0.3", QKV_MAX_CALL_TOKENS="4").wait_ready()
    with ThreadPoolExecutor(3) as pool:
        for answer in pool.map(lambda _: server.post(), range(3)):
            check_error(answer, 504, code="deadline_exceeded")
    # One of the three is still running; the others waited behind it, and must not be run for nobody.
    wait_for(lambda: server.metric(QUEUE) == 0, 5)
    assert server.metric('qkv_call_rows_count{model="fake",role="encode"}') == 1
    assert server.status("/health/ready") == 200


def test_an_answer_that_nobody_takes_is_cut_at_the_deadline_and_its_memory_given_back(start: Start) -> None:
    server = start(QKV_REQUEST_TIMEOUT_S="4", QKV_MAX_ANSWERS_BYTES="25000000").wait_ready()
    body = json.dumps({"input": "a " * 80_000}).encode()  # about 11 MB of memory, and 5 MB on the wire
    request = raw_request(body, f"content-length: {len(body)}", path="/v1/tokenize")
    with closing(server.connect()) as one, closing(server.connect()) as other:
        for connection in (one, other):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        refused = httpx2.post(f"{server.url}/v1/tokenize", content=body, headers=JSON, timeout=10)
        check_error(refused, 429, code="queue_full")
        assert "25000000 bytes of memory allowed" in refused.json()["error"]["message"]
        assert server.post().status_code == 200, "a small answer still has room"
        wait_for(lambda: server.metric("qkv_requests_in_flight") == 0, 10)
        assert "code=deadline_exceeded" in server.log
    taken = httpx2.post(f"{server.url}/v1/tokenize", content=body, headers=JSON, timeout=10)
    assert taken.status_code == 200
    assert "Traceback" not in server.log


@pytest.mark.parametrize("token", ["h2c", "H2C", "foo, h2c", "websocket"])
def test_an_offer_of_another_protocol_is_passed_over_and_the_body_kept(start: Start, token: str) -> None:
    server = start().wait_ready()
    body = json.dumps(BODY).encode()
    offer = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {token}", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    request = raw_request(body, *offer, f"content-length: {len(body)}")
    chunked = raw_request(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), *offer, "transfer-encoding: chunked")
    with closing(server.connect()) as connection:
        for whole in (request, chunked, request):
            connection.sendall(whole)
            assert read_answer(connection)[0] == 200
        for cut in range(60, len(request), 37):
            connection.sendall(request[:cut])
            time.sleep(0.02)
            connection.sendall(request[cut:])
            assert read_answer(connection)[0] == 200
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert read_answer(connection)[0] == 200


def test_a_body_is_never_taken_for_a_request(start: Start) -> None:
    server = start().wait_ready()
    hidden = b"GET /health/live HTTP/1.1\r\nhost: test\r\n\r\n"
    body = b"\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n" * 50 + hidden
    head = f"POST /nope HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with closing(server.connect()) as connection:
        connection.sendall(head)
        assert read_answer(connection)[0] == 404
        connection.sendall(body)
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.recv(1000)


def test_who_pipelines_and_leaves_is_told_as_gone(start: Start) -> None:
    server = start(call_s=0.5).wait_ready()
    body = json.dumps(BODY).encode()
    with closing(server.connect()) as connection:
        connection.sendall(raw_request(body, f"content-length: {len(body)}") * 2)
        wait_for(lambda: server.metric("qkv_requests_in_flight") == 1, 5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
    wait_for(lambda: server.metric("qkv_requests_in_flight") == 0, 5)
    assert server.post().status_code == 200
    assert "ERROR" not in server.log
    assert "Traceback" not in server.log


def test_who_reads_nothing_loses_the_connection_on_every_route(start: Start) -> None:
    server = start(QKV_KEEP_ALIVE_S="1", QKV_REQUEST_TIMEOUT_S="1").wait_ready()
    request = b"GET /docs/assets/swagger/swagger-ui-bundle.js HTTP/1.1\r\nhost: test\r\n\r\n"
    with closing(server.connect()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request * 4)
        process = psutil.Process(server.popen.pid)
        local = connection.getsockname()[1]

        def is_held() -> bool:
            return any(found.raddr and found.raddr.port == local for found in process.net_connections("tcp"))

        wait_for(is_held, 5)
        wait_for(lambda: not is_held(), 10)
    assert server.post().status_code == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/encode HTTP/1.1\r\nhost: te"], ids=["nothing", "half a head"])
def test_a_connection_without_a_whole_head_is_closed(start: Start, sent: bytes) -> None:
    server = start(QKV_KEEP_ALIVE_S="1").wait_ready()
    with closing(server.connect()) as connection:
        started_s = time.monotonic()
        for byte in sent:
            connection.sendall(bytes([byte]))
            time.sleep(0.01)  # a byte now and then does not begin the time anew
        assert connection.recv(100) == b""
        assert time.monotonic() - started_s < 5


def test_what_is_no_http_gets_the_error_body(start: Start) -> None:
    server = start().wait_ready()
    with closing(server.connect()) as connection:
        connection.sendall(b"FOO BAR\r\n\r\n")
        status, body = read_answer(connection)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


def test_a_short_text_does_not_wait_for_all_of_a_long_list(start: Start) -> None:
    server = start(call_s=0.2).wait_ready()
    long = {"input": ["the cat " * 30] * 200}
    with ThreadPoolExecutor(1) as pool:
        heavy = pool.submit(httpx2.post, f"{server.url}/v1/encode", json=long, timeout=60)
        wait_for(lambda: server.metric(QUEUE) > 1000, 5)
        assert server.post().status_code == 200
        assert server.metric(QUEUE) > 1000, "the long list is still waiting"
        assert heavy.result().status_code == 200
