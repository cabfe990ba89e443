"""What the service counts, and the seam through which the engine reports.

The engine knows `Observer` only. `Metrics` has a registry of its own: two apps in one process never mix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from service.runners.base import RunnerInfo

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a short text on an idle machine (a few ms) to a full queue (minutes).
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_CALL_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)


class Observer(Protocol):
    """What the engine tells about itself. Called from worker threads and from the event loop."""

    def call_finished(self, role: str, rows: int, real_tokens: int, padded_tokens: int, run_s: float) -> None:
        """One call of the model ended well. padded_tokens: rows times the width of the call."""
        ...


class NullObserver:
    """Listens and forgets."""

    def call_finished(self, role: str, rows: int, real_tokens: int, padded_tokens: int, run_s: float) -> None:
        """Nothing to keep."""


NO_OBSERVER: Observer = NullObserver()


class Metrics:
    """The numbers of one app, as Prometheus reads them."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("qkv_requests", "Requests answered.", ["route", "status"], registry=registry)
        self._seconds = Histogram(
            "qkv_request_seconds",
            "Seconds from the headers to the answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._errors = Counter("qkv_errors", "Requests refused or failed, by error code.", ["code"], registry=registry)
        self._items = Counter("qkv_items", "Inputs answered.", ["route"], registry=registry)
        self._tokens = Counter("qkv_tokens", "Tokens of the inputs answered.", ["route"], registry=registry)
        self._attention = Counter("qkv_attention_requests", "Answers with attention weights.", registry=registry)
        self._calls = Histogram(
            "qkv_call_seconds", "Seconds in one call of the model.", ["role"], buckets=_CALL_SECONDS, registry=registry
        )
        self._rows = Histogram("qkv_call_rows", "Rows in one call.", ["role"], buckets=_ROWS, registry=registry)
        self._call_tokens = Histogram(
            "qkv_call_tokens", "Real tokens in one call.", ["role"], buckets=_TOKENS, registry=registry
        )
        self._padding = Counter("qkv_padding_tokens", "Tokens computed for padding alone.", ["role"], registry=registry)
        self._ready = Gauge("qkv_ready", "1 while new requests are taken.", registry=registry)
        self._queue = Gauge("qkv_queue_tokens", "Tokens waiting or running.", registry=registry)
        self._running = Gauge("qkv_running_calls", "Calls of the model running now.", registry=registry)
        self._in_flight = Gauge("qkv_requests_in_flight", "Requests being answered.", registry=registry)
        self._runner = Info("qkv_runner", "What really runs, from the loaded session.", registry=registry)
        ProcessCollector(registry=registry)
        # Looking a child up by its labels costs more than counting does.
        self._of_request = functools.cache(lambda r, s: (self._requests.labels(r, s), self._seconds.labels(r)))
        self._of_answer = functools.cache(lambda r: (self._items.labels(r), self._tokens.labels(r)))

    def call_finished(self, role: str, rows: int, real_tokens: int, padded_tokens: int, run_s: float) -> None:
        """One call of the model ended well."""
        self._calls.labels(role).observe(run_s)
        self._rows.labels(role).observe(rows)
        self._call_tokens.labels(role).observe(real_tokens)
        self._padding.labels(role).inc(padded_tokens - real_tokens)

    def request_finished(self, route: str, status: int, seconds: float, *, code: str | None) -> None:
        """One request ended. code: of the error that was its answer."""
        count, duration = self._of_request(route, status)
        count.inc()
        duration.observe(seconds)
        if code is not None:
            self._errors.labels(code).inc()

    def items_answered(self, route: str, num_items: int, num_tokens: int, *, has_attention: bool) -> None:
        """What one good answer held."""
        items, tokens = self._of_answer(route)
        items.inc(num_items)
        tokens.inc(num_tokens)
        if has_attention:
            self._attention.inc()

    def watch_service(self, is_ready: Callable[[], float], in_flight: Callable[[], float]) -> None:
        """Read these at every scrape."""
        self._ready.set_function(is_ready)
        self._in_flight.set_function(in_flight)

    def watch_engine(self, info: RunnerInfo, queue_tokens: Callable[[], float], running: Callable[[], float]) -> None:
        """Name what runs, and read the queue at every scrape."""
        self._runner.info(
            {
                "backend": info.backend,
                "provider": info.provider,
                "num_threads": str(info.num_threads),
                "num_workers": str(info.num_workers),
            }
        )
        self._queue.set_function(queue_tokens)
        self._running.set_function(running)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
