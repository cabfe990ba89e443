"""The model repository extension of the Open Inference Protocol, as Triton's clients speak it, for administrators.

A bundle is named, never described: no paths, no addresses, no files in the request. It is loaded while the others, and
its own earlier version, answer; that version is closed when the requests that began with it are over.
"""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import ConfigDict, Field

from service.admin import AdminKey
from service.api.body import SPEAKABLE, Body, check_media_type, parse
from service.api.oip_model import VERSION
from service.api.oip_schema import MEDIA_TYPES, refuse
from service.errors import RequestError
from service.exchange import Exchange, Reply
from service.loader import Entry, Loader
from service.state import Service

Model = TypeVar("Model", bound=Body)

# Of Triton's; the one of `load` and `unload` that changes nothing here, where no model depends on another.
_TAKEN = "unload_dependents"
_MAX_NAMED = 5


class IndexBody(Body):
    """What `index` takes; a body may be left out."""

    model_config = ConfigDict(extra="ignore")

    ready: bool = Field(False, description="Only the models that take requests.")


class LoadBody(Body):
    """What `load` and `unload` take; a body may be left out. Of parameters only `unload_dependents` is taken."""

    model_config = ConfigDict(extra="ignore")

    parameters: dict[str, Any] | None = None


class RepositoryApi:
    """The endpoints: each takes the admin key first of all."""

    def __init__(self, key: AdminKey, loader: Loader) -> None:
        self._key = key
        self._loader = loader

    async def index(self, service: Service, exchange: Exchange) -> Reply:
        """The models that are loaded, and those that could be."""
        body = await self._read(service, exchange, IndexBody)
        entries = [entry for entry in await self._loader.index() if entry.state == "READY" or not body.ready]
        return Reply(orjson.dumps([_told(entry) for entry in entries]))

    async def load(self, service: Service, exchange: Exchange) -> Reply:
        """Load a bundle of the repository by name."""
        name = await self._named(service, exchange)
        return self._changed(exchange, await exchange.unless_gone(self._loader.load(name)))

    async def unload(self, service: Service, exchange: Exchange) -> Reply:
        """Offer a model no longer."""
        name = await self._named(service, exchange)
        return self._changed(exchange, await self._loader.unload(name))

    async def _named(self, service: Service, exchange: Exchange) -> str:
        body = await self._read(service, exchange, LoadBody)
        exchange.holds_drain = False  # a server that is to end does not wait for another model
        if others := sorted({name.partition(":")[0] for name in body.parameters or () if name != _TAKEN}):
            names = [f"parameters.{name}" for name in others if SPEAKABLE.fullmatch(name)][:_MAX_NAMED]
            told = ", ".join(names) or "parameters"
            message = f"{told}: a bundle is loaded as it is, or not at all"
            raise RequestError(message, param=names[0] if names else "parameters", code="unsupported")
        return str(exchange.scope["path_params"]["model"])

    async def _read(self, service: Service, exchange: Exchange, model: type[Model]) -> Model:
        self._key.check(exchange)
        check_media_type(exchange, also=MEDIA_TYPES)
        body = await exchange.read_body(max_bytes=service.settings.max_body_bytes)
        return parse(body or b"{}", model, refuse=refuse)

    def _changed(self, exchange: Exchange, entry: Entry) -> Reply:
        exchange.model = entry.name
        return Reply(orjson.dumps(_told(entry)))


def _told(entry: Entry) -> dict[str, str]:
    return {"name": entry.name, "version": VERSION, "state": entry.state, "reason": entry.reason}
