"""How models are loaded: one at a time, in a thread of its own, so that others are answered meanwhile.

At start those that were asked for, later any bundle of the repository by its name. A load that was begun is finished,
whether or not its caller waits for it; one that fails changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from service.background import in_thread, return_memory
from service.bundle import Bundle, open_bundle
from service.engine.engine import Engine
from service.errors import NotFoundError, RequestError, StartupError
from service.manifest import Manifest
from service.registry import Registry
from service.repository import Found, Repository

Prepare = Callable[[], Bundle[Manifest]]
State = Literal["READY", "LOADING", "UNAVAILABLE"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the index of the repository. reason: why it is in this state, and what went wrong with it last."""

    name: str
    state: State
    reason: str = ""


class Loader:
    """Changes what a registry offers. Used by the event loop alone."""

    def __init__(
        self, models: Registry, repository: Repository, open_engine: Callable[[Bundle[Manifest]], Engine]
    ) -> None:
        """open_engine: loads, proves and warms a bundle; blocking, raises StartupError."""
        self._models = models
        self._repository = repository
        self._open_engine = open_engine
        # Where each model was loaded from last, wherever that is, and what became of the bundles there.
        self._paths: dict[str, Path] = {}
        self._reasons: dict[Path, str] = {}
        self._loading: Found | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Entry]] = set()

    async def start(self, prepare: Sequence[Prepare]) -> None:
        """Load all, one after the other. Raises StartupError saying which one cannot be, and why."""
        async with self._turn:
            for one in prepare:
                path, engine = await in_thread(partial(self._open, one))
                name = engine.manifest.name
                if name in self._paths:
                    await engine.close(0)
                    raise StartupError(f"{self._paths[name]} and {path} are both called {name}: one has to be renamed")
                self._add(path, engine)

    async def load(self, name: str) -> Entry:
        """Load a bundle of the repository, in the place of a version that is loaded.

        Raises NotFoundError, or RequestError when several fit, or with what is wrong with the bundle.
        """
        task = asyncio.get_running_loop().create_task(self._load(name))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def unload(self, name: str) -> Entry:
        """Offer a model no longer, by its name or by that of its folder. Raises NotFoundError."""
        async with self._turn:
            model = next((model for model in self._models if name == model.manifest.name), None)
            model = model or next((model for model in self._models if name == self._path(model).name), None)
            if model is None:
                raise NotFoundError("model: none of this name is loaded", param="model", code="model_not_found")
            self._models.remove(model.manifest.name)
            self._reasons[model.bundle.path] = "unloaded"
            return Entry(model.manifest.name, "UNAVAILABLE", "unloaded")

    async def index(self) -> list[Entry]:
        """The models that are loaded, and those that could be, by the names that `load` takes."""
        found = await in_thread(partial(self._repository.scan, tuple(self._paths.values())))
        loaded = {model.bundle.path: model.manifest.name for model in self._models}
        entries = [self._loaded_entry(path, name) for path, name in loaded.items()]
        for name, bundle in found:
            if bundle.model is None or loaded.get(bundle.path.resolve()) != bundle.model:
                entries.append(self._other_entry(name, bundle))
        return sorted(entries, key=lambda entry: entry.name)

    def close(self) -> None:
        """Nobody waits for loads any more. The thread of one that runs cannot be stopped."""
        for task in self._tasks:
            task.cancel()

    async def _load(self, name: str) -> Entry:
        async with self._turn:
            found = await in_thread(partial(self._repository.find, name, tuple(self._paths.values())))
            place = found.path.resolve()
            self._loading, self._models.expected = found, found.model
            fault = ""
            try:
                path, engine = await in_thread(partial(self._open, partial(open_bundle, found.path)))
            except StartupError as error:
                fault = self._reasons[place] = str(error)
                _log.error("not loaded: %s", error)
            except Exception as error:
                self._reasons[place] = type(error).__name__
                _log.exception("not loaded: %s", found.path)
                raise
            finally:
                self._loading = self._models.expected = None
            if fault:
                await in_thread(return_memory)
                raise RequestError(f"model: not loaded: {fault}", param="model", code="load_failed")
            self._add(path, engine)
            return self._loaded_entry(place, engine.manifest.name)

    def _open(self, prepare: Prepare) -> tuple[Path, Engine]:
        """-> the bundle's path as it was given, and the engine, in whose files no link can be pointed elsewhere"""
        bundle = prepare()
        try:
            return bundle.path, self._open_engine(replace(bundle, path=bundle.path.resolve()))
        except StartupError as error:
            raise StartupError(f"{bundle.manifest.name}: {error}") from None
        except Exception as error:
            error.add_note(f"while {bundle.manifest.name} was loaded from {bundle.path}")
            raise

    def _add(self, path: Path, engine: Engine) -> None:
        self._models.add(engine)
        self._paths[engine.manifest.name] = path
        self._reasons.pop(engine.bundle.path, None)
        info = engine.runner_info()
        _log.info("loaded: %s on %s, %d threads", engine.manifest.name, info.provider, info.num_threads)

    def _path(self, model: Engine) -> Path:
        return self._paths[model.manifest.name]

    def _loaded_entry(self, place: Path, name: str) -> Entry:
        reason = self._reasons.get(place, "")
        return Entry(name, "READY", f"the last load failed: {reason}" if reason else "")

    def _other_entry(self, name: str, bundle: Found) -> Entry:
        if bundle == self._loading:
            return Entry(name, "LOADING")
        reason = self._reasons.get(bundle.path.resolve(), bundle.fault)
        if bundle.model is not None and (num := self._models.num_retiring(bundle.model)):
            reason = f"{reason or 'replaced'}, {num} requests are still answered"
        return Entry(name, "UNAVAILABLE", reason)

    def _forget(self, task: asyncio.Task[Entry]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told in the log, when nobody waits for it
