"""The models that are loaded: which one answers a request, and how one takes the place of another.

A request keeps the model that it began with: one that was replaced or unloaded takes no new requests, and is closed
after the last one of its own. Used by the event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from service.background import in_thread, return_memory
from service.engine.engine import Engine
from service.errors import NotFoundError, NotReadyError, RequestError
from service.exchange import Exchange
from service.metrics import Metrics, Watched

# Names in a message: a server may have more models than a caller reads.
_MAX_LISTED = 10
_NO_MODEL_RETRY_S = 5.0
_EXPECTED_RETRY_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Served:
    """One version of a model. num_requests: those that began with it and are not over. watch: its canary."""

    engine: Engine
    watch: asyncio.Task[None]
    num_requests: int = 0
    is_retired: bool = False
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.engine.manifest.name

    def begin(self, exchange: Exchange) -> Engine:
        """The engine, for a request that keeps it until it is over."""
        self.num_requests += 1
        exchange.model = self.name
        exchange.at_end(self._end)
        return self.engine

    def retire(self) -> None:
        """Take no new requests."""
        self.watch.cancel()
        self.is_retired = True
        self._end_if_last()

    def _end(self) -> None:
        self.num_requests -= 1
        self._end_if_last()

    def _end_if_last(self) -> None:
        if self.is_retired and not self.num_requests:
            self.is_over.set()


class Registry:
    """The models of one server, by name. expected: one that is being loaded."""

    def __init__(self, metrics: Metrics) -> None:
        self.expected: str | None = None
        self._metrics = metrics
        self._served: dict[str, Served] = {}
        self._retired: dict[Served, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Engine]:
        """Those that take requests, by name."""
        return (self._served[name].engine for name in sorted(self._served))

    def get(self, name: str) -> Engine | None:
        """The model of that name, when it takes requests."""
        served = self._served.get(name)
        return None if served is None else served.engine

    def choose(self, name: str | None) -> Served:
        """The model that a request names, or the only one.

        Raises NotFoundError for one that is not loaded, NotReadyError for one that is being loaded, and RequestError
        when several are loaded and none is named.
        """
        if name is None and len(self._served) == 1:
            (served,) = self._served.values()
            return served
        if name is not None and (found := self._served.get(name)) is not None:
            return found
        if name is not None and name == self.expected:
            raise NotReadyError(f"model: `{name}` is being loaded", retry_after_s=_EXPECTED_RETRY_S)
        if not self._served:
            raise NotReadyError("no model is loaded", retry_after_s=_NO_MODEL_RETRY_S)
        if name is None:
            raise RequestError(
                f"model: this field is required: {self._listed()} are loaded", param="model", code="missing_field"
            )
        verb = "is loaded here" if len(self._served) == 1 else "are loaded here"
        raise NotFoundError(f"model: only {self._listed()} {verb}", param="model", code="model_not_found")

    def num_retiring(self, name: str) -> int:
        """Requests that are still answered by versions of a model that are no longer offered."""
        return sum(served.num_requests for served in self._retired if served.name == name)

    def add(self, engine: Engine) -> None:
        """Offer a model that is loaded, proved and warm, in the place of one of its name."""
        before = self._served.get(engine.manifest.name)
        watch = asyncio.get_running_loop().create_task(engine.watch())
        served = self._served[engine.manifest.name] = Served(engine, watch)
        self._metrics.watch_model(
            served.name,
            Watched(
                engine.runner_info(),
                engine.max_call_tokens,
                is_ready=lambda: engine.health().is_ready,
                queue_tokens=lambda: engine.health().queued_tokens,
                running=lambda: engine.health().running_calls,
            ),
        )
        if before is not None:
            self._retire(before)

    def remove(self, name: str) -> bool:
        """Offer a model no longer. -> whether it was"""
        served = self._served.pop(name, None)
        if served is None:
            return False
        self._metrics.forget_model(name)
        self._retire(served)
        return True

    def unready_reason(self) -> str | None:
        """Why no new work should be sent here: there is no model, or one cannot answer."""
        if not self._served:
            return "no model is loaded"
        for engine in self:
            if (reason := engine.health().reason) is not None:
                return reason if len(self._served) == 1 else f"`{engine.manifest.name}`: {reason}"
        return None

    async def close(self, timeout_s: float) -> None:
        """Finish what was admitted, end what is left with an error, free everything."""
        for served in self._served.values():
            served.watch.cancel()
        every = [*self._served.values(), *self._retired]
        await asyncio.gather(*(served.engine.close(timeout_s) for served in every))

    def _retire(self, served: Served) -> None:
        served.retire()
        task = asyncio.get_running_loop().create_task(self._close_when_over(served))
        self._retired[served] = task

    async def _close_when_over(self, served: Served) -> None:
        await served.is_over.wait()
        name, path = served.name, served.engine.bundle.path
        await served.engine.close(0)
        del self._retired[served], served
        await in_thread(return_memory)
        _log.info("closed: %s of %s", name, path)

    def _listed(self) -> str:
        return listed(sorted(self._served))


def listed(names: Iterable[str]) -> str:
    """Names for a message: not more than anybody reads."""
    first, rest = (found := list(names))[:_MAX_LISTED], len(found) - _MAX_LISTED
    words = ", ".join(f"`{name}`" for name in first)
    return words if rest <= 0 else f"{words} and {rest} more"
