"""What the service counts, and the seam through which the engine reports.

The engine knows `Observer` only. `Metrics` has a registry of its own: two apps in one process never mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

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


@dataclass(frozen=True, slots=True)
class Watched:
    """What is told of a loaded model: what runs it, most padded tokens in a call, and what is read at every scrape."""

    info: RunnerInfo
    max_call_tokens: int
    is_ready: Callable[[], float]
    queue_tokens: Callable[[], float]
    running: Callable[[], float]


class Metrics:
    """The numbers of one app, as Prometheus reads them."""

    def __init__(self) -> None:
        # Beside every counter and histogram there would be a series of the time at which it began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry)
        of_answer, of_call = ["model", "route"], ["model", "role"]
        self._requests = counter("qkv_requests", "Requests answered.", [*of_answer, "status"])
        self._seconds = histogram("qkv_request_seconds", "From headers to answer.", of_answer, buckets=_SECONDS)
        self._errors = counter("qkv_errors", "Requests refused or failed, by error code.", ["code", "model"])
        self._items = counter("qkv_items", "Inputs answered.", of_answer)
        self._tokens = counter("qkv_tokens", "Tokens of the inputs answered.", of_answer)
        self._attention = counter("qkv_attention_requests", "Answers with attention weights.", ["model"])
        self._calls = histogram("qkv_call_seconds", "In one call of the model.", of_call, buckets=_CALL_SECONDS)
        self._rows = histogram("qkv_call_rows", "Rows in one call.", of_call, buckets=_ROWS)
        self._call_tokens = histogram("qkv_call_tokens", "Real tokens in one call.", of_call, buckets=_TOKENS)
        self._padding = counter("qkv_padding_tokens", "Tokens computed for padding alone.", of_call)
        self._ready = gauge("qkv_ready", "1 while new requests are taken.")
        self._model_ready = gauge("qkv_model_ready", "1 while the model can answer.", ["model"])
        self._queue = gauge("qkv_queue_tokens", "Tokens waiting or running.", ["model"])
        self._running = gauge("qkv_running_calls", "Calls of the model running now.", ["model"])
        self._in_flight = gauge("qkv_requests_in_flight", "Requests being answered.")
        self._max_queue = gauge("qkv_max_queue_tokens", "Tokens that may wait or run: QKV_MAX_QUEUE_TOKENS.")
        self._max_call = gauge("qkv_max_call_tokens", "Padded tokens that fit in one call.", ["model"])
        self._runner = Info("qkv_runner", "What really runs, from the loaded session.", ["model"], registry=registry)
        ProcessCollector(registry=registry)
        # Looking a child up by its labels costs more than counting does.
        self._of_request = cache(
            lambda model, route, status: (
                self._requests.labels(model, route, status),
                self._seconds.labels(model, route),
            )
        )
        self._of_answer = cache(
            lambda model, route: (self._items.labels(model, route), self._tokens.labels(model, route))
        )

    def of_model(self, model: str) -> Observer:
        """Who listens to the calls of this model."""
        return _CallMetrics(
            lambda role: (
                self._calls.labels(model, role),
                self._rows.labels(model, role),
                self._call_tokens.labels(model, role),
                self._padding.labels(model, role),
            )
        )

    def request_finished(self, model: str, route: str, status: int, seconds: float, *, code: str | None) -> None:
        """One request ended. model: empty for those that chose none. code: of the error that was its answer."""
        count, duration = self._of_request(model, route, status)
        count.inc()
        duration.observe(seconds)
        if code is not None:
            self._errors.labels(code, model).inc()

    def items_answered(self, model: str, route: str, num_items: int, num_tokens: int) -> None:
        """What one good answer held."""
        items, tokens = self._of_answer(model, route)
        items.inc(num_items)
        tokens.inc(num_tokens)

    def attention_answered(self, model: str) -> None:
        """It held attention weights too."""
        self._attention.labels(model).inc()

    def limit_set(self, max_queue_tokens: int) -> None:
        """What the queue is measured against."""
        self._max_queue.set(max_queue_tokens)

    def watch_service(self, is_ready: Callable[[], float], in_flight: Callable[[], float]) -> None:
        """Read these at every scrape."""
        self._ready.set_function(is_ready)
        self._in_flight.set_function(in_flight)

    def watch_model(self, model: str, watched: Watched) -> None:
        """Name what runs, in the place of what ran before, and read the rest at every scrape."""
        info = watched.info
        self._runner.labels(model).info(
            {
                "backend": info.backend,
                "provider": info.provider,
                "num_threads": str(info.num_threads),
                "num_workers": str(info.num_workers),
            }
        )
        self._max_call.labels(model).set(watched.max_call_tokens)
        self._model_ready.labels(model).set_function(watched.is_ready)
        self._queue.labels(model).set_function(watched.queue_tokens)
        self._running.labels(model).set_function(watched.running)

    def forget_model(self, model: str) -> None:
        """It is loaded no longer. What it was asked stays counted."""
        for metric in (self._runner, self._max_call, self._model_ready, self._queue, self._running):
            metric.remove(model)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


class _CallMetrics:
    """The observer of one model. of_role: its seconds, rows, tokens and padding by the graph's role."""

    def __init__(self, of_role: Callable[[str], tuple[Histogram, Histogram, Histogram, Counter]]) -> None:
        self._of_role = cache(of_role)

    def call_finished(self, role: str, rows: int, real_tokens: int, padded_tokens: int, run_s: float) -> None:
        """One call of the model ended well."""
        seconds, num_rows, tokens, padding = self._of_role(role)
        seconds.observe(run_s)
        num_rows.observe(rows)
        tokens.observe(real_tokens)
        padding.inc(padded_tokens - real_tokens)
