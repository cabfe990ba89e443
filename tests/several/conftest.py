"""Several fake models behind the real app, without a socket: bundles on disk whose graphs a fake runner answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.app import create_app
from service.bundle import Bundle, open_bundle, sha256_file
from service.engine.engine import Engine
from service.errors import StartupError
from service.manifest import MANIFEST, PARITY, PROBES, WEIGHTS, Manifest
from service.parity.report import GateResult, ParityReport
from service.runners.base import Array, FakeRunner
from service.settings import Settings
from service.state import Service
from tests.fixtures.fakes import fake_bundle
from tests.http.conftest import wait_ready

KEY = "a-key-of-an-administrator"
ADMIN = {"authorization": f"Bearer {KEY}"}
_GATE = GateResult(name="fake", limit=1.0, worst=0.0, case="fake", num_checks=1, passed=True)
_REPORT = ParityReport(reference="none", form="quick", num_cases=1, gates=(_GATE,), environment={})


def write_bundle(path: Path, name: str, *, dim: int = 4) -> Path:
    """A bundle that `open_bundle` believes: its graphs and weights are one byte each. dim: tells versions apart."""
    path.mkdir(parents=True)
    manifest = fake_bundle(path, name=name).manifest
    assert manifest.embedding is not None
    (path / PARITY).write_bytes(_REPORT.model_dump_json().encode())
    for file in (WEIGHTS, PROBES, *(graph.file for graph in manifest.graphs)):
        (path / file).write_bytes(b"x")
    changes = {
        "embedding": manifest.embedding.model_copy(update={"dim": dim}),
        "files": {file: sha256_file(path / file) for file in manifest.file_names},
    }
    (path / MANIFEST).write_bytes(manifest.model_copy(update=changes).sealed().to_bytes())
    return path


@dataclass
class Fakes:
    """What runs behind each model, by its name, and what the loader was asked to open.

    hold: an event for which a load of that name waits. broken: names whose loads fail.
    """

    on_call: dict[str, Callable[[Mapping[str, Array]], None]] = field(default_factory=dict)
    hold: dict[str, threading.Event] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    opened: list[Path] = field(default_factory=list)
    runners: list[FakeRunner] = field(default_factory=list)
    num_opening: int = 0
    most_opening: int = 0

    def open(self, bundle: Bundle[Manifest], service: Service) -> Engine:
        """An engine over a runner of its own."""
        name = bundle.manifest.name
        self.num_opening += 1
        self.most_opening = max(self.most_opening, self.num_opening)
        self.opened.append(bundle.path)
        try:
            if name in self.hold:
                assert self.hold[name].wait(10)
            if name in self.broken:
                raise StartupError(self.broken[name])
        finally:
            self.num_opening -= 1
        runner = FakeRunner(on_call=self.on_call.get(name))
        runner.load("encode")
        self.runners.append(runner)
        return Engine(bundle, service.settings, runner=runner, host=service.host_of(name))


@dataclass
class Served:
    """A client of an app of its own, and what is behind it."""

    client: httpx2.AsyncClient
    service: Service

    async def encode(self, model: str | None = None, text: str = "the cat", **fields: Any) -> httpx2.Response:
        """`/v1/encode`, with a model or without."""
        named = {} if model is None else {"model": model}
        return await self.client.post("/v1/encode", json={"input": text, **named, **fields})

    async def admin(self, path: str, **options: Any) -> httpx2.Response:
        """A request of an administrator under `/v2/repository`."""
        return await self.client.post(f"/v2/repository/{path}", headers=ADMIN, **options)

    async def index(self) -> dict[str, tuple[str, str]]:
        """-> state and reason, by name"""
        answer = await self.admin("index")
        assert answer.status_code == 200, answer.text
        return {entry["name"]: (entry["state"], entry["reason"]) for entry in answer.json()}


OpenServed = Callable[..., Awaitable[Served]]


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


@pytest.fixture
async def open_served(tmp_path: Path, fakes: Fakes) -> AsyncIterator[OpenServed]:
    """`await open_served("a", "b", directory=…, max_items=…)`: an app that serves bundles of these names, ready."""
    async with AsyncExitStack() as stack:

        async def open_one(*names: str, is_ready: bool = True, **settings: Any) -> Served:
            paths = [write_bundle(tmp_path / "served" / name, name) for name in names]
            prepare = [partial(open_bundle, path) for path in paths]
            app = create_app(Settings(**settings), *prepare, open_engine=fakes.open)
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx2.ASGITransport(app=app)
            client = httpx2.AsyncClient(transport=transport, base_url="http://test")
            await stack.enter_async_context(client)
            if is_ready:
                await wait_ready(client)
            return Served(client, app.service)

        yield open_one


async def until(is_true: Callable[[], bool]) -> None:
    """Poll what sets no event. Raises TimeoutError."""
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 - set by a thread or by the app
            await asyncio.sleep(0.005)
