"""The real app over the real engine and a fake model, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.app import App, Open, create_app
from service.bundle import Bundle
from service.engine.engine import Engine
from service.manifest import HeadSpec, Manifest, Task
from service.runners.base import FakeRunner
from service.settings import Settings
from service.state import Service
from tests.fixtures.fakes import fake_bundle, fake_runner
from tests.http.process import Process, Start

OpenClient = Callable[..., Awaitable[httpx2.AsyncClient]]


def fake_open(runner: FakeRunner) -> Open:
    """Starts the engine over this runner instead of over a bundle's graphs."""

    def open_engine(bundle: Bundle[Manifest], service: Service) -> Engine:
        return Engine(bundle, service.settings, runner=runner, host=service.host_of(bundle.manifest.name))

    return open_engine


def app_of(client: httpx2.AsyncClient) -> App:
    """The app behind a client that `open_client` gave."""
    transport = client._transport
    assert isinstance(transport, httpx2.ASGITransport)
    assert isinstance(transport.app, App)
    return transport.app


async def wait_ready(client: httpx2.AsyncClient) -> None:
    """Poll readiness. Raises TimeoutError."""
    async with asyncio.timeout(10):
        while (await client.get("/health/ready")).status_code != 200:  # noqa: ASYNC110 - only HTTP tells
            await asyncio.sleep(0.005)


@pytest.fixture
async def open_client(tmp_path: Path) -> AsyncIterator[OpenClient]:
    """`await open_client(runner=…, task=…, max_items=…)`: of an app of its own, ready unless `prepare` blocks."""
    async with AsyncExitStack() as stack:

        async def open_one(
            runner: FakeRunner | None = None,
            prepare: Callable[[], Bundle[Manifest]] | None = None,
            task: Task = "embedding",
            head: HeadSpec | None = None,
            **settings: Any,
        ) -> httpx2.AsyncClient:
            options = Settings(**settings)
            bundle = fake_bundle(tmp_path, prompts={"query": "the "}, task=task, head=head)
            runner = runner or fake_runner(bundle.manifest)
            app = create_app(options, prepare or (lambda: bundle), open_engine=fake_open(runner))
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx2.ASGITransport(app=app)
            client = httpx2.AsyncClient(transport=transport, base_url="http://test")
            await stack.enter_async_context(client)
            if prepare is None:
                await wait_ready(client)
            return client

        yield open_one


@pytest.fixture
async def client(open_client: OpenClient) -> httpx2.AsyncClient:
    """A client of a ready app with the default settings."""
    return await open_client()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(call_s=…, load_s=…, QKV_…=…)`: a server process, ended with the test."""
    processes: list[Process] = []

    def start_one(call_s: float = 0, load_s: float = 0, fault: str = "", **settings: str) -> Process:
        directory = tmp_path / str(len(processes))
        directory.mkdir()
        processes.append(Process(directory, call_s, load_s, fault, settings))
        return processes[-1]

    yield start_one
    for process in processes:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait(10)
