"""One TCP connection: uvicorn's own, with what it leaves open.

A connection that sends nothing, or half a head, is closed when it has been idle for too long, and cut when it does not
take what it was sent. What is no HTTP gets the error body of every other error. An application may cut a connection. An
offer to go on in another protocol, which Java's clients make with every request (HTTP/2), is passed over as it must be
(RFC 9110, section 7.8), where uvicorn would lose the body.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors import RequestError, error_body

ABORT = "qkv.abort"
_FRAMING = (b"content-length", b"transfer-encoding")


class Connection(HttpToolsProtocol):
    """Leans on uvicorn's protocol class: its timer, its parser callbacks, its cycles and its scope."""

    _running: RequestResponseCycle | None = None
    _is_resuming = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells only the request that was parsed last: with several on their way, the others go on for nobody.
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # A head must be whole in one idle time: bytes that trickle in do not begin it anew.
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        self._feed(data)
        if timer is None or timer.cancelled():
            return
        if self._has_request or self.transport.is_closing() or self.timeout_keep_alive_task is not None:
            timer.cancel()
        else:
            self.timeout_keep_alive_task = timer

    def timeout_keep_alive_handler(self) -> None:
        # What was not taken in all that time never will be: a polite close would wait for it.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def on_message_begin(self) -> None:
        if not self._is_resuming:
            super().on_message_begin()
            self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        if not self._is_resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_resuming:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_resuming:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # its body is still to come
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._has_request:
            # Sent now, it would be taken for the answer to the request before it: that one ends the connection.
            self.cycle.keep_alive = False
            return
        body = error_body(RequestError("this is no HTTP/1.1 request", code="invalid_http"))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._pass_over(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _pass_over(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 after a head with an offer: a new parser that is told how the body is framed."""
        framing = [name + b": " + value + b"\r\n" for name, value in self.headers if name in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._is_resuming = True
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
        finally:
            self._is_resuming = False
        if rest:
            self._feed(rest)

    @property
    def _has_request(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's annotation leaves out the None it begins with
        return cycle is not None and not cycle.response_complete


def abort(scope: Any) -> bool:
    """Cut the connection of a request at once. -> whether the server has a way to"""
    found = scope.get("extensions", {}).get(ABORT)
    if found is not None:
        found["abort"]()
    return found is not None
