"""A server that answers as it is told: right after a fixed time, or wrong in one way."""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

DIM = 16
Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One HTTP reply. num_missing: bytes that are announced and not sent; None = the connection is closed instead.

    trickle_s: before each byte of the body.
    """

    content: Json
    status: int = 200
    num_missing: int | None = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    late_s: float = 0.0
    trickle_s: float = 0.0
    spoil: Callable[[bytes], bytes] = lambda body: body

    def replaced(self, **fields: Any) -> Reply:
        """With other fields in every item."""
        key = "results" if "results" in self.content else "data"
        items = [item | {name: make(item) for name, make in fields.items()} for item in self.content[key]]
        return replace(self, content=self.content | {key: items})


# The right reply, and the texts that were asked for before.
Fault = Callable[[Reply, "Stub"], Reply]


@dataclass
class Stub:
    """latency_s: of every reply. fault: what becomes of replies after the first `num_right`."""

    latency_s: float = 0.0
    fault: Fault | None = None
    num_right: int = 0
    models: tuple[str, ...] = ("stub",)
    has_attention: bool = False
    routes: tuple[str, ...] | None = None  # that its models say they have
    paths: list[str] = field(default_factory=list)
    bodies: list[Json] = field(default_factory=list)
    url: str = ""
    num_open: int = 0  # connections, now
    num_open_then: list[int] = field(default_factory=list)  # with each request

    def answer(self, path: str, body: bytes) -> Reply:
        """The reply to one request."""
        if path == "/v1/models":
            extra: Json = {"attention": {"layers": 2}} if self.has_attention else {}
            extra |= {} if self.routes is None else {"routes": list(self.routes)}
            return Reply({"data": [{"id": name, "object": "model", **extra} for name in self.models]})
        asked = json.loads(body)
        self.paths.append(path)
        self.bodies.append(asked)
        self.num_open_then.append(self.num_open)
        reply = Reply({"object": "list", **_content(path, asked)})
        return self.fault(reply, self) if self.fault and len(self.bodies) > self.num_right else reply


def vector(text: str) -> list[float]:
    """A unit vector of that text. -> [DIM]"""
    values = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM)
    return [float(value) for value in values / np.linalg.norm(values)]


def _content(path: str, asked: Json) -> Json:
    if path == "/v1/rerank":
        scores = {index: vector(text)[0] for index, text in enumerate(asked["documents"])}
        order = sorted(scores, key=lambda index: (-scores[index], index))
        return {"results": [{"index": index, "relevance_score": scores[index]} for index in order]}
    texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
    return {"data": [_item(index, text, path) for index, text in enumerate(texts)]}


def _item(index: int, text: str, path: str) -> Json:
    if path == "/v1/classify":
        scores = [{"label": label, "score": score} for label, score in zip("abc", vector(text), strict=False)]
        return {"index": index, "scores": sorted(scores, key=lambda score: -float(score["score"]))}
    item: Json = {"object": "embedding", "index": index, "embedding": vector(text)}
    if path == "/v1/encode":
        num_tokens = len(text.split())
        row = [1 / num_tokens] * num_tokens
        layer = {"layer": 1, "shape": [1, num_tokens, num_tokens], "weights": [[row] * num_tokens]}
        item |= {"num_tokens": num_tokens, "attention": [layer]}
    return item


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    """Serve it on a free port in a thread; its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        stub.num_open += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await _one_request(stub, reader, writer):
                pass
        writer.close()
        stub.num_open -= 1
        tasks.discard(task)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0.05)

    def call(coroutine: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(run(), loop).result(10)

    server: asyncio.Server = call(asyncio.start_server(handle, "127.0.0.1", 0))
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield stub.url
    finally:
        call(stop(server))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _one_request(stub: Stub, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request. -> True when the connection stays open"""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    path = head.split()[1]
    lengths = [line.split(":")[1] for line in head.splitlines() if line.startswith("content-length:")]
    body = await reader.readexactly(int(lengths[0])) if lengths else b""
    reply = stub.answer(path, body)
    await asyncio.sleep(stub.latency_s + reply.late_s)
    if reply.num_missing is None:
        return False
    content = reply.spoil(json.dumps(reply.content).encode())
    length = len(content) + reply.num_missing
    headers = {"Content-Type": "application/json", "Content-Length": length, **reply.headers}
    start = [f"HTTP/1.1 {reply.status} Any", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write(("\r\n".join(start) + "\r\n\r\n").encode())
    for piece in [content[at : at + 1] for at in range(len(content))] if reply.trickle_s else [content]:
        await asyncio.sleep(reply.trickle_s)
        writer.write(piece)
    await writer.drain()
    return not reply.num_missing
