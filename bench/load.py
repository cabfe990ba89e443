"""A closed-loop load generator over raw sockets: one process, one thread, nothing but the standard library.

`python -m bench.load` reads a JSON job from standard input and writes its result as JSON. Every connection sends its
next request when it has the whole answer to the last one. Requests are built before the clock starts and answers are
only counted, so that the generator takes less than a tenth of a core from the server that it measures.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any

_BUFFER = bytearray(
    1 << 18
)  # one for all: received bytes are looked at once, and a new buffer a call costs page faults


@dataclass(frozen=True, slots=True)
class Job:
    """What to send. bodies: JSON request bodies, sent in turn. min_requests: the window stays open until it has them.

    warm_up_s, window_s: seconds before and during the measurement; max_s: the longest that both may take.
    """

    host: str
    port: int
    path: str
    bodies: list[str]
    clients: int
    warm_up_s: float
    window_s: float
    min_requests: int = 20
    max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured, in the window alone. generator_cores: CPU seconds of this process by second."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    num_requests: int
    num_errors: int
    generator_cores: float


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    unsent: bytes = b""
    sent_s: float = 0.0
    head: bytearray = field(default_factory=bytearray)
    num_missing: int = -1  # bytes of the answer still to come; -1 before its head was read
    is_ok: bool = True


def run(job: Job) -> Load:
    """Measure one server. Raises OSError when it does not listen, ConnectionError when it hangs up."""
    requests = cycle([_request(job, body.encode()) for body in job.bodies])
    selector = selectors.DefaultSelector()
    connections = [_Connection(_connect(job)) for _ in range(job.clients)]
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        _send(selector, connection, next(requests))
    try:
        return _measure(job, selector, requests)
    finally:
        for connection in connections:
            connection.socket.close()


def _measure(job: Job, selector: selectors.BaseSelector, requests: Iterator[bytes]) -> Load:
    start_s = time.perf_counter()
    warm_s, end_s, last_s = start_s + job.warm_up_s, start_s + job.warm_up_s + job.window_s, start_s + job.max_s
    latencies: list[float] = []
    num_errors, cpu_s, opened_s, now = 0, 0.0, 0.0, start_s
    while now < end_s or (len(latencies) < job.min_requests and now < last_s):
        for connection in _answered(selector):
            now = time.perf_counter()
            if opened_s:
                latencies.append(now - connection.sent_s)
                num_errors += not connection.is_ok
            elif now >= warm_s:
                opened_s, cpu_s = now, time.process_time()
            _send(selector, connection, next(requests))
        now = time.perf_counter()
    elapsed_s, cpu_s = now - opened_s, time.process_time() - cpu_s
    _drain(selector, job)
    latencies.sort()
    return Load(
        requests_per_s=len(latencies) / elapsed_s,
        p50_ms=1e3 * latencies[len(latencies) // 2],
        p99_ms=1e3 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        num_requests=len(latencies),
        num_errors=num_errors,
        generator_cores=cpu_s / elapsed_s,
    )


def _connect(job: Job) -> socket.socket:
    connection = socket.create_connection((job.host, job.port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def _request(job: Job, body: bytes) -> bytes:
    head = (
        f"POST {job.path} HTTP/1.1\r\nHost: {job.host}:{job.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _send(selector: selectors.BaseSelector, connection: _Connection, request: bytes) -> None:
    connection.head.clear()
    connection.num_missing = -1
    connection.sent_s = time.perf_counter()
    connection.unsent = request
    _push(selector, connection)


def _push(selector: selectors.BaseSelector, connection: _Connection) -> None:
    try:
        sent = connection.socket.send(connection.unsent)
    except BlockingIOError:
        sent = 0
    was_waiting = len(connection.unsent) > sent
    connection.unsent = connection.unsent[sent:]
    if was_waiting:
        selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)


def _answered(selector: selectors.BaseSelector, timeout_s: float = 0.5) -> Iterator[_Connection]:
    """The connections whose answers are complete."""
    for key, events in selector.select(timeout_s):
        connection: _Connection = key.data
        if events & selectors.EVENT_WRITE:
            selector.modify(connection.socket, selectors.EVENT_READ, connection)
            _push(selector, connection)
        if events & selectors.EVENT_READ and _receive(connection):
            yield connection


def _receive(connection: _Connection) -> bool:
    """Take what has come. True when the answer is complete."""
    num_received = connection.socket.recv_into(_BUFFER)
    if not num_received:
        raise ConnectionError("the server closed a connection in the middle of an answer")
    if connection.num_missing >= 0:
        connection.num_missing -= num_received
        return connection.num_missing == 0
    connection.head += memoryview(_BUFFER)[:num_received]
    end = connection.head.find(b"\r\n\r\n")
    if end < 0:
        return False
    connection.is_ok = connection.head.startswith(b"HTTP/1.1 200")
    length = connection.head[:end].lower().split(b"content-length:")[1].split(b"\r\n")[0]
    connection.num_missing = int(length) - (len(connection.head) - end - 4)
    return connection.num_missing == 0


def _drain(selector: selectors.BaseSelector, job: Job) -> None:
    """Wait for the last answer of every connection: a server must not compute for clients that left."""
    waiting, last_s = job.clients, time.perf_counter() + job.max_s
    while waiting and time.perf_counter() < last_s:
        waiting -= sum(1 for _ in _answered(selector))


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    json.dump(asdict(run(Job(**job))), sys.stdout)


if __name__ == "__main__":
    main()
