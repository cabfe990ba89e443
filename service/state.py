"""What the service is doing: loading, ready, draining or failed. Changed by the event loop only."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.engine.answers import AnswerBudget
from service.engine.engine import Engine
from service.engine.host import Host, QueueBudget
from service.errors import NotReadyError
from service.exchange import Exchange
from service.metrics import Metrics
from service.registry import Registry
from service.settings import Settings

_LOADING_RETRY_S = 2.0
_DRAINING_RETRY_S = 5.0
_UNREADY_RETRY_S = 2.0
_LOADING = "the model is being loaded"


@dataclass(slots=True)
class Service:
    """The life of one app.

    models: those that take requests. is_loading: not all that were asked for at start are there yet. failure: why they
    never will be. exchanges: API requests that have come.
    """

    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    models: Registry = field(init=False)
    is_loading: bool = True
    failure: str | None = None
    is_draining: bool = False
    exchanges: set[Exchange] = field(default_factory=set)
    _queue: QueueBudget = field(init=False)
    _answers: AnswerBudget = field(init=False)

    def __post_init__(self) -> None:
        self.models = Registry(self.metrics)
        self._queue = QueueBudget(self.settings.max_queue_tokens)
        self._answers = AnswerBudget(self.settings.max_answers_bytes)
        self.metrics.limit_set(self.settings.max_queue_tokens)
        self.metrics.watch_service(lambda: self.unready_reason() is None, lambda: self.num_in_flight)

    def host_of(self, model: str) -> Host:
        """What an engine of this server has from it."""
        return Host(self._queue, self._answers, self.metrics.of_model(model))

    @property
    def num_in_flight(self) -> int:
        """API requests that a drain waits for: those whose bodies are still coming may never be answered."""
        return sum(exchange.has_body and exchange.holds_drain for exchange in self.exchanges)

    def admit(self) -> None:
        """Raises NotReadyError while loading and while draining: no new request is taken."""
        if self.is_draining:
            raise NotReadyError("the server is shutting down", retry_after_s=_DRAINING_RETRY_S, code="draining")
        if self.is_loading:
            raise NotReadyError(_LOADING, retry_after_s=_LOADING_RETRY_S)

    def engine_for(self, model: str | None, exchange: Exchange) -> Engine:
        """The engine of the model that a request names, until the request is over. Raises as `Registry.choose`."""
        return self.models.choose(model).begin(exchange)

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
        return _LOADING if self.is_loading else self.models.unready_reason()
