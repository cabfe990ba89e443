"""Runs the app under uvicorn, and ends it well.

SIGTERM: not ready at once, new work 503, the listener stays open until what is in flight is finished and
`drain_delay_s` has passed, at most `drain_timeout_s`; then exit code 0. A second signal ends the process on the spot.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from service.app import App, Open, create_app
from service.background import is_at_work
from service.connection import Connection
from service.errors import StartupError
from service.loader import Prepare
from service.logs import configure_logging
from service.settings import Settings
from service.signals import leave
from service.state import Service

EXIT_FAILED = 1

_BACKLOG = 2048
# What is left after draining is idle, or has had all the time there was: it is ended with an error.
_LAST_GRACE_S = 1

_log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """uvicorn closes its listener at the first signal; this one answers 503 until its work is done."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._draining_since_s: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: leave now."""
        if self._draining_since_s is not None:
            os._exit(128 + sig)
        self._draining_since_s = time.monotonic()
        self._service.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Whether it is time to close, asked ten times a second."""
        is_over = await super().on_tick(counter)
        return is_over or self._service.failure is not None or self._is_drained()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every waiter that outlived the drain, then close the connections."""
        service = self._service
        if service.failure is None:
            _log.info("stopping")
        if service.num_in_flight:
            _log.warning("%d requests outlived the drain and are ended", service.num_in_flight)
            await service.models.close(0)
        await super().shutdown(sockets)

    def _is_drained(self) -> bool:
        if self._draining_since_s is None:
            return False
        settings = self._service.settings
        waited_s = time.monotonic() - self._draining_since_s
        has_rested = waited_s >= settings.drain_delay_s and self._service.num_in_flight == 0
        return has_rested or waited_s >= settings.drain_timeout_s


def serve(
    settings: Settings,
    *prepare: Prepare,
    directories: Sequence[Path] = (),
    open_engine: Open | None = None,
    abandon: Callable[[], None] | None = None,
) -> int:
    """Serve until a signal. -> the exit code: 0 after a drain, 1 when a model could not be loaded.

    prepare: each gives a verified bundle, in the loader's thread, while the port is open and says "not ready".
    directories: of bundles that may be loaded later. abandon: ends what `prepare` has begun, when a signal comes before
    it is done.
    Raises StartupError when the address cannot be listened on.
    """
    configure_logging(settings)
    if settings.device == "cuda":
        from service.runners.cuda import check_cuda  # loads ONNX Runtime: else the loader's thread does

        try:
            check_cuda(settings.device_id)
        except StartupError as error:
            raise StartupError(f"QKV_DEVICE=cuda: {error}") from None
    listener = listen(settings)
    app = create_app(settings, *prepare, directories=directories, open_engine=open_engine)
    server = DrainingServer(_config(app, settings), app.service)
    _log.info("listening on %s", _url(listener))
    server.run(sockets=[listener])
    if app.service.failure is not None:
        return EXIT_FAILED
    _log.info("stopped")
    if is_at_work():
        if abandon is not None:
            abandon()
        leave()
    return 0


def listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises StartupError naming the address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise StartupError(f"cannot listen on {settings.host} port {settings.port}: {reason}") from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _config(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=_LAST_GRACE_S,
    )
