"""One TCP connection: uvicorn's own, with the three things that it leaves open.

A connection that sends nothing, or half a head, is closed when it has been idle for too long. What is no HTTP gets the
error body of every other error. An application may cut a connection whose client takes no more of its answer. An offer
to go on in HTTP/2, which Java's clients make with every request, is passed over as it must be (RFC 9113, section 3.1),
where uvicorn would lose the body.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors import RequestError, error_body

ABORT = "qkv.abort"
_HTTP2_OFFER = re.compile(rb"\r\nupgrade:(?=[ \t]*h2c[ \t]*\r\n)", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """Leans on uvicorn's protocol class: its timer, its parser callbacks and its scope."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        # A head must be whole in one idle time: bytes that trickle in do not begin it anew.
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data if self._has_request else _without_http2_offer(data))
        if timer is None or timer.cancelled():
            return
        if self._has_request or self.transport.is_closing() or self.timeout_keep_alive_task is not None:
            timer.cancel()
        else:
            self.timeout_keep_alive_task = timer

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}

    def send_400_response(self, msg: str) -> None:
        body = error_body(RequestError("this is no HTTP/1.1 request", code="invalid_http"))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    @property
    def _has_request(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's annotation leaves out the None it begins with
        return cycle is not None and not cycle.response_complete

    def _wait_for_head(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)


def _without_http2_offer(data: bytes) -> bytes:
    head, end, body = data.partition(b"\r\n\r\n")
    return _HTTP2_OFFER.sub(rb"\r\nx-upgrade:", head + b"\r\n")[:-2] + end + body if b"h2c" in head else data


def abort(scope: Any) -> bool:
    """Cut the connection of a request at once. -> whether the server has a way to"""
    found = scope.get("extensions", {}).get(ABORT)
    if found is not None:
        found["abort"]()
    return found is not None
