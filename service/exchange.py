"""One HTTP request on its way through the service: what its headers said, its body, its answer, its log line."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from service.connection import abort
from service.engine.answers import AnswerBudget, Hold
from service.errors import BodySizeError, DeadlineError

JSON = "application/json"

# A client that left is looked for only after this long: a short request is over before it would have paid.
_WATCH_AFTER_S = 0.05
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")

# Unique among processes and requests, and cheaper than a random number each.
_PROCESS = os.urandom(5).hex()
_COUNTER = itertools.count(1)

# An answer up to this size is sent in one piece.
_SLICE_BYTES = 2**18

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection: nobody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, as bytes."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange:
    """One request, and what is learnt about it. Model, items, tokens and code are for the log line and the metrics.

    holds_drain: the server waits for it before it ends.
    """

    __slots__ = (
        "_at_end",
        "_is_gone",
        "_receive",
        "_send",
        "_watcher",
        "code",
        "has_attention",
        "has_body",
        "headers",
        "holds_drain",
        "is_draining",
        "model",
        "num_body_bytes",
        "num_items",
        "num_tokens",
        "request_id",
        "route",
        "scope",
        "started_s",
        "status",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = _request_id(self.headers.get(b"x-request-id"))
        self.started_s = time.monotonic()
        self.route = self.model = ""
        self.status = 0
        self.code: str | None = None
        self.num_body_bytes = self.num_items = self.num_tokens = 0
        self.has_attention = self.has_body = self.is_draining = False
        self.holds_drain = True
        self._at_end: list[Callable[[], None]] = []
        self._receive = receive
        self._send = send
        self._is_gone = False
        self._watcher: asyncio.Task[None] | None = None

    async def read_body(self, *, max_bytes: int) -> bytes:
        """The body, counted as it comes: a chunked one cannot slip past the limit.

        Raises BodySizeError before the rest is read, ClientGoneError.
        """
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > max_bytes:
            raise BodySizeError(f"body: {max_bytes} bytes allowed, got {int(declared)}")
        chunk, is_last = await self._chunk()
        body = chunk if is_last and len(chunk) <= max_bytes else await self._read_rest(chunk, is_last, max_bytes)
        self.has_body, self.num_body_bytes = True, len(body)
        return body

    async def within(self, timeout_s: float, work: Awaitable[T]) -> T:
        """Await work for so long. Raises DeadlineError saying what was missing: the body, time or a reader."""
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            reason = "they are over" if self.has_body else "its body is not complete"
            reason = "its answer was not taken" if self.status else reason
            raise DeadlineError(f"{timeout_s:g} s allowed for a request, and {reason}") from None

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work, and cancel it when the client leaves. Raises ClientGoneError."""
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._start_watch, task)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
            task.uncancel()
            raise ClientGoneError from None
        finally:
            timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()

    async def answer(self, reply: Reply) -> None:
        """Send a whole answer."""
        headers = [
            (b"content-type", reply.media_type.encode()),
            (b"content-length", str(len(reply.body)).encode()),
            *((name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": reply.status, "headers": headers})
        body = reply.body
        if len(body) > _SLICE_BYTES:
            # The server waits before each slice, and before the empty end, until the client has taken the one before.
            view = memoryview(body)
            for start in range(0, len(body), _SLICE_BYTES):
                part = view[start : start + _SLICE_BYTES]
                await self.send({"type": "http.response.body", "body": part, "more_body": True})
            body = b""
        await self.send({"type": "http.response.body", "body": body})

    def hold_from(self, budget: AnswerBudget) -> Hold:
        """What takes memory for this request's answer from a budget, until the request is over."""

        def hold(num_bytes: float) -> None:
            budget.take(num_bytes)
            self.at_end(partial(budget.give_back, num_bytes))

        return hold

    def at_end(self, give_back: Callable[[], None]) -> None:
        """What is done when this request is over, whatever becomes of it."""
        self._at_end.append(give_back)

    def end(self) -> None:
        """The answer is gone: others may have what it held."""
        while self._at_end:
            self._at_end.pop()()

    async def abort(self) -> None:
        """Cut the connection: its answer had begun, and cannot be ended well."""
        if abort(self.scope):
            await asyncio.sleep(0)  # the server notices in its next round, and must before this request is over

    async def send(self, message: Message) -> None:
        """The ASGI `send` of this request: adds what every answer carries."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = [(b"x-request-id", self.request_id.encode())]
            if self.is_draining:
                extra.append((b"connection", b"close"))
            message["headers"] = [*message.get("headers", ()), *extra]
        await self._send(message)

    async def receive(self) -> Message:
        """The ASGI `receive` of this request."""
        return await self._receive()

    async def _chunk(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message.get("body", b""), not message.get("more_body", False)

    async def _read_rest(self, first: bytes, is_last: bool, max_bytes: int) -> bytes:
        body = bytearray(first)
        while len(body) <= max_bytes:
            if is_last:
                return bytes(body)
            chunk, is_last = await self._chunk()
            body += chunk
        raise BodySizeError(f"body: {max_bytes} bytes allowed, got more")

    def _start_watch(self, task: asyncio.Task[Any]) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch(task))

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        task.cancel()


def _request_id(sent: bytes | None) -> str:
    return sent.decode() if sent and _REQUEST_ID.fullmatch(sent) else f"{_PROCESS}-{next(_COUNTER):x}"
