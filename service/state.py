"""What the service is doing: loading, ready, draining or failed. Changed by the event loop only."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.engine.engine import Engine
from service.errors import NotReadyError
from service.exchange import Exchange
from service.metrics import Metrics
from service.settings import Settings

_LOADING_RETRY_S = 2.0
_DRAINING_RETRY_S = 5.0
_UNREADY_RETRY_S = 2.0


@dataclass(slots=True)
class Service:
    """The life of one app.

    engine: None while it loads. failure: why it never will be there. exchanges: API requests that have come.
    """

    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    engine: Engine | None = None
    failure: str | None = None
    is_draining: bool = False
    exchanges: set[Exchange] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.metrics.limits_set(self.settings.max_queue_tokens, self.settings.max_call_tokens)
        self.metrics.watch_service(lambda: self.unready_reason() is None, lambda: self.num_in_flight)

    def opened(self, engine: Engine) -> None:
        """The engine is loaded, proved and warm: from now on requests are taken."""
        self.engine = engine
        self.metrics.watch_engine(
            engine.runner_info(),
            lambda: engine.health().queued_tokens,
            lambda: engine.health().running_calls,
        )

    @property
    def num_in_flight(self) -> int:
        """API requests being answered: those whose bodies are still coming may never be."""
        return sum(exchange.has_body for exchange in self.exchanges)

    @property
    def is_loading(self) -> bool:
        """Neither there nor known never to be there."""
        return self.engine is None and self.failure is None

    def admit(self) -> Engine:
        """The engine, for a new request. Raises NotReadyError while loading and while draining."""
        if self.is_draining:
            raise NotReadyError("the server is shutting down", retry_after_s=_DRAINING_RETRY_S, code="draining")
        if self.engine is None:
            raise NotReadyError("the model is being loaded", retry_after_s=_LOADING_RETRY_S)
        return self.engine

    def check_ready(self) -> None:
        """Raises NotReadyError saying why no new work should be sent here."""
        if (reason := self.unready_reason()) is not None:
            code = "draining" if self.is_draining else "not_ready"
            raise NotReadyError(reason, retry_after_s=_UNREADY_RETRY_S, code=code)

    def unready_reason(self) -> str | None:
        """Why no new work should be sent here; None when it should. A full queue is no reason."""
        if self.failure is not None:
            return "the model could not be loaded"
        if self.is_draining:
            return "the server is shutting down"
        return "the model is being loaded" if self.engine is None else self.engine.health().reason
