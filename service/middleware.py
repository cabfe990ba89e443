"""The front of the app: every request passes here once, whatever answers it.

Gives a request its id, turns every error into its answer (the one place that does), writes its log line and counts it.
The hot routes are answered from here; FastAPI's routing and dependency layers serve the others and the documentation.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import (
    DeadlineError,
    MethodError,
    NotFoundError,
    NotReadyError,
    RequestError,
    ServiceError,
    error_body,
)
from service.exchange import ClientGoneError, Exchange, Reply
from service.logs import log_fields
from service.state import Service

Endpoint = Callable[[Service, Exchange], Awaitable[Reply]]

# Nobody reads these lines: probes and scrapes come every few seconds.
_QUIET = ("/health", "/metrics", "/v2/health")
_CLIENT_GONE = 499
_SHUT_DOWN = "the server shut down before this request was finished"
_SHUT_DOWN_RETRY_S = 5.0
# A refusal is a few hundred bytes: who does not take them reads nothing at all.
_REFUSAL_S = 10.0

_access = logging.getLogger("qkv.access")
_log = logging.getLogger(__name__)


class Front:
    """Outermost ASGI layer.

    endpoints: the POST routes it answers itself, by path. `{model}` in a path is a name that may have slashes, any
    other word in braces has none; the endpoint finds them in the scope, as `path_params`.
    """

    def __init__(self, app: ASGIApp, *, service: Service, endpoints: Mapping[str, Endpoint]) -> None:
        self._app = app
        self._service = service
        self._endpoints = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        self._patterns = [(path, _pattern(path), found) for path, found in endpoints.items() if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        exchange.is_draining = self._service.is_draining
        timeout_s = self._service.settings.request_timeout_s
        try:
            await exchange.within(timeout_s, self._dispatch(exchange))
        except ClientGoneError:
            exchange.status, exchange.code = _CLIENT_GONE, "client_gone"
        except asyncio.CancelledError:
            # Only the server does this, when the drain is over. Raised again, it would be told as a bug.
            await self._refuse(exchange, NotReadyError(_SHUT_DOWN, retry_after_s=_SHUT_DOWN_RETRY_S, code="draining"))
        except Exception as error:
            await self._refuse(exchange, error)
        finally:
            self._record(exchange)

    async def _dispatch(self, exchange: Exchange) -> None:
        route, endpoint = self._find(exchange.scope)
        if endpoint is None or exchange.scope["method"] != "POST":
            await self._app(exchange.scope, exchange.receive, exchange.send)
            return
        exchange.route = route
        self._service.admit()
        self._service.exchanges.add(exchange)
        try:
            reply = await endpoint(self._service, exchange)
            exchange.is_draining = self._service.is_draining
            await exchange.answer(reply)
        finally:
            self._service.exchanges.discard(exchange)
            exchange.end()

    def _find(self, scope: Scope) -> tuple[str, Endpoint | None]:
        path = scope["path"]
        if (endpoint := self._endpoints.get(path)) is not None:
            return path, endpoint
        for route, pattern, endpoint in self._patterns:
            if found := pattern.fullmatch(path):
                scope["path_params"] = found.groupdict()
                return route, endpoint
        return path, None

    async def _refuse(self, exchange: Exchange, error: Exception) -> None:
        failure = translate(error, exchange.request_id)
        exchange.code = failure.code
        if not isinstance(error, ServiceError | HTTPException):
            _log.error("request %s failed", exchange.request_id, exc_info=error)
        if exchange.status != 0:
            exchange.status = failure.status  # for the log and the metrics: what had begun was no good answer
            await exchange.abort()
            return
        exchange.is_draining = self._service.is_draining
        body = error_body(failure, exchange.scope["path"])
        reply = Reply(body, failure.status, headers=failure.headers)
        try:
            await exchange.within(_REFUSAL_S, exchange.answer(reply))
        except DeadlineError:
            await exchange.abort()

    def _record(self, exchange: Exchange) -> None:
        seconds = time.monotonic() - exchange.started_s
        # A path in a log line or a label is the route's own, never what a caller typed.
        exchange.route = exchange.route or getattr(exchange.scope.get("route"), "path", "unmatched")
        metrics = self._service.metrics
        metrics.request_finished(exchange.model, exchange.route, exchange.status, seconds, code=exchange.code)
        if exchange.num_items and exchange.code is None:
            metrics.items_answered(exchange.model, exchange.route, exchange.num_items, exchange.num_tokens)
            if exchange.has_attention:
                metrics.attention_answered(exchange.model)
        level = logging.DEBUG if exchange.route.startswith(_QUIET) else logging.INFO
        log_fields(_access, level, exchange.scope["method"], _access_fields(exchange, seconds))


def _pattern(path: str) -> re.Pattern[str]:
    words = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path).replace("(?P<model>[^/]+)", "(?P<model>.+)")
    return re.compile(words, re.DOTALL)  # a line break is a character like any other


def _access_fields(exchange: Exchange, seconds: float) -> dict[str, Any]:
    # Probes choose no model, and neither does what is refused before.
    chosen = {"model": exchange.model} if exchange.model else {}
    fields = {
        "route": exchange.route,
        **chosen,
        "status": exchange.status,
        "items": exchange.num_items,
        "tokens": exchange.num_tokens,
        "ms": round(seconds * 1000, 1),
        "request_id": exchange.request_id,
    }
    return fields if exchange.code is None else fields | {"code": exchange.code}


def translate(error: Exception, request_id: str) -> ServiceError:
    """The error that a client is told about. What is not ours is a bug: a 500 that says only where to look."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, HTTPException):
        return _from_http(error)
    return ServiceError(f"internal error; the log of the server has it under request id {request_id}")


def _from_http(error: HTTPException) -> ServiceError:
    if error.status_code == 404:
        return NotFoundError("there is no such path; /docs lists those that there are, under /v1, /v2 and /health")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        if allow == "GET":
            allow = "GET, HEAD"  # every GET route has its HEAD, which the router does not tell
        return MethodError(f"this path takes {allow}", allow=allow)
    failure = RequestError("the request cannot be answered")
    failure.status = error.status_code
    return failure
