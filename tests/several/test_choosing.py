"""Which of several models answers, and what they share."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.api.schema import Health, ModelDetail, ModelList
from service.bundle import open_bundle
from service.errors import StartupError
from service.loader import Loader
from service.registry import listed
from service.repository import Repository
from service.runners.base import Array, FakeRunner
from service.settings import Settings
from service.state import Service
from tests.fixtures.fakes import fake_tokenizer
from tests.http.test_bodies import check_error
from tests.several.conftest import Fakes, OpenServed, Served, until, write_bundle

ROUTES = ("/v1/encode", "/v1/embeddings", "/v1/tokenize")


def held(event: threading.Event) -> Any:
    """What keeps a model from answering."""

    def wait(inputs: Mapping[str, Array]) -> None:
        assert event.wait(10)

    return wait


def waiting(served: Served) -> int:
    return sum(engine.health().queued_tokens for engine in served.service.models)


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_answers_with_the_model_that_is_named(open_served: OpenServed, route: str) -> None:
    served = await open_served("b", "a")
    for name in ("a", "b"):
        answer = await served.client.post(route, json={"input": "the cat", "model": name})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
    unnamed = await served.client.post(route, json={"input": "the cat"})
    message = check_error(unnamed, 400, param="model", code="missing_field")
    assert message == "model: this field is required: `a`, `b` are loaded"
    unknown = await served.client.post(route, json={"input": "the cat", "model": "zebraquartz"})
    message = check_error(unknown, 404, param="model", code="model_not_found")
    assert message == "model: only `a`, `b` are loaded here"


async def test_one_model_needs_no_name(open_served: OpenServed) -> None:
    served = await open_served("a")
    assert (await served.encode()).json()["model"] == "a"
    assert check_error(await served.encode("b"), 404, code="model_not_found") == "model: only `a` is loaded here"


def test_a_long_list_is_cut() -> None:
    assert listed(map(str, range(3))) == "`0`, `1`, `2`"
    assert listed(map(str, range(500))).endswith("`8`, `9` and 490 more")


async def test_all_are_listed_and_each_is_told(open_served: OpenServed) -> None:
    served = await open_served("b", "a", "org/c")
    models = ModelList.model_validate_json((await served.client.get("/v1/models")).content, strict=False).data
    assert [model.id for model in models] == ["a", "b", "org/c"]
    for name in ("a", "b", "org/c"):
        detail = await served.client.get(f"/v1/models/{name}")
        assert ModelDetail.model_validate_json(detail.content, strict=False).id == name
        for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/1", f"/v2/models/{name}/ready"):
            assert (await served.client.get(path)).json()["name"] == name
        body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}]}
        assert (await served.client.post(f"/v2/models/{name}/infer", json=body)).json()["model_name"] == name
    check_error(await served.client.get("/v1/models/d"), 404, code="model_not_found")
    assert (await served.client.get("/v2/models/d")).status_code == 404


async def test_ready_when_all_are_there(open_served: OpenServed, fakes: Fakes) -> None:
    fakes.hold["b"] = threading.Event()
    served = await open_served("a", "b", is_ready=False)
    await until(lambda: served.service.models.get("a") is not None and len(fakes.opened) == 2)
    for answer in (
        await served.client.get("/health/ready"),
        await served.encode("a"),
        await served.client.get("/v1/models"),
    ):
        check_error(answer, 503, code="not_ready")
    fakes.hold["b"].set()
    await until(lambda: not served.service.is_loading)
    assert (await served.client.get("/health/ready")).status_code == 200
    assert (await served.encode("b")).status_code == 200


async def test_one_that_cannot_be_loaded_is_named(
    open_served: OpenServed, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.broken["b"] = "encode.onnx: a fault"
    served = await open_served("a", "b", "c", is_ready=False)
    await until(lambda: served.service.failure is not None)
    assert served.service.failure == "b: encode.onnx: a fault"
    assert [path.name for path in fakes.opened] == ["a", "b"]
    assert "cannot start: b: encode.onnx: a fault" in caplog.text
    check_error(await served.client.get("/health/ready"), 503, code="not_ready")


async def test_a_bug_while_one_is_loaded_names_it_too(
    open_served: OpenServed, fakes: Fakes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(bundle: object, service: object) -> None:
        raise KeyError("a detail of ours")

    monkeypatch.setattr(fakes, "open", explode)
    served = await open_served("a", is_ready=False)
    await until(lambda: served.service.failure is not None)
    assert "while a was loaded from" in caplog.text


async def test_a_model_that_cannot_answer_makes_the_server_unready_by_name(
    open_served: OpenServed, fakes: Fakes
) -> None:
    fakes.on_call["b"] = _explode
    served = await open_served("a", "b", is_ready=False, canary_interval_s=0.05)
    await until(lambda: not served.service.is_loading and served.service.unready_reason() is not None)
    message = check_error(await served.client.get("/health/ready"), 503, code="not_ready")
    assert message.startswith("`b`: the canary failed")
    assert (await served.client.get("/v2/models/a/ready")).status_code == 200
    assert (await served.client.get("/v2/models/b/ready")).status_code == 503
    assert (await served.encode("a")).status_code == 200
    health = Health.model_validate_json((await served.client.get("/health")).content)
    assert [(model.id, model.status) for model in health.models] == [("a", "ready"), ("b", "unready")]
    metrics = (await served.client.get("/metrics")).text
    for line in ("qkv_ready 0.0", 'qkv_model_ready{model="a"} 1.0', 'qkv_model_ready{model="b"} 0.0'):
        assert line in metrics


def _explode(inputs: Mapping[str, Array]) -> None:
    raise RuntimeError("the device is gone")


async def test_the_queue_is_the_servers(open_served: OpenServed, fakes: Fakes) -> None:
    may_run = threading.Event()
    fakes.on_call["a"] = held(may_run)
    served = await open_served("a", "b", max_queue_tokens=8)
    old = [asyncio.create_task(served.encode("a", "cat")) for _ in range(2)]
    await until(lambda: waiting(served) == 6)
    answer = await served.encode("b")
    message = check_error(answer, 429, code="queue_full")
    assert "8 tokens allowed, 6 queued or running, 4 in this request" in message
    may_run.set()
    assert [(await answer).status_code for answer in old] == [200, 200]
    assert (await served.encode("b")).status_code == 200
    assert waiting(served) == 0


async def test_the_memory_of_answers_is_the_servers(open_served: OpenServed, fakes: Fakes) -> None:
    may_run = threading.Event()
    fakes.on_call["a"] = held(may_run)
    served = await open_served("a", "b", max_answers_bytes=1024)
    every = {"include": ["tokens"]}
    alone = await served.encode("b", "the cat " * 2, **every)
    assert alone.status_code == 200
    old = asyncio.create_task(served.encode("a", "the cat " * 2, include=["embedding", "tokens"]))
    await until(lambda: waiting(served) > 0)
    check_error(await served.encode("b", "the cat " * 2, **every), 429, code="queue_full")
    may_run.set()
    assert (await old).status_code == 200
    assert (await served.encode("b", "the cat " * 2, **every)).status_code == 200


async def test_a_call_is_alone_only_when_no_model_has_another(
    open_served: OpenServed, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_run = threading.Event()
    fakes.on_call["a"] = held(may_run)
    alone: list[bool] = []
    run = FakeRunner.run

    def noted(self: FakeRunner, *arguments: Any, is_alone: bool = False) -> Any:
        alone.append(is_alone)
        return run(self, *arguments, is_alone=is_alone)

    monkeypatch.setattr(FakeRunner, "run", noted)
    served = await open_served("a", "b")
    await served.encode("b")
    old = asyncio.create_task(served.encode("a"))
    await until(lambda: len(alone) == 2)
    await served.encode("b")
    may_run.set()
    await old
    await served.encode("b")
    assert alone == [True, True, False, True]


async def test_metrics_and_log_lines_name_the_model(
    open_served: OpenServed, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    boom = fake_tokenizer().token_to_id("boom")

    def explode(inputs: Mapping[str, Array]) -> None:
        if (inputs["input_ids"] == boom).any():
            raise RuntimeError("boom")

    fakes.on_call["b"] = explode
    served = await open_served("a", "b")
    with caplog.at_level(logging.INFO):
        await served.encode("a", include=["attention"])
        await served.encode("b")
        await served.encode("b", "boom")
        await served.encode("zebraquartz")
    text = (await served.client.get("/metrics")).text
    for line in (
        'qkv_requests_total{model="a",route="/v1/encode",status="200"} 1.0',
        'qkv_requests_total{model="b",route="/v1/encode",status="200"} 1.0',
        'qkv_requests_total{model="b",route="/v1/encode",status="500"} 1.0',
        'qkv_requests_total{model="",route="/v1/encode",status="404"} 1.0',
        'qkv_errors_total{code="inference_failed",model="b"} 1.0',
        'qkv_attention_requests_total{model="a"} 1.0',
        'qkv_call_rows_count{model="a",role="attend"} 1.0',
        'qkv_call_rows_count{model="b",role="encode"} 1.0',
        'qkv_tokens_total{model="a",route="/v1/encode"} 4.0',
        'qkv_queue_tokens{model="b"} 0.0',
    ):
        assert line in text, text
    assert "zebraquartz" not in text
    lines = [record.fields for record in caplog.records if record.name == "qkv.access"]  # type: ignore[attr-defined]
    assert [line.get("model") for line in lines] == ["a", "b", "b", None]
    failed = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert failed == ["b-worker-0: inference failed on a row of 3 tokens"]


async def test_two_of_one_name_are_refused_with_both_paths(tmp_path: Path, fakes: Fakes) -> None:
    paths = [write_bundle(tmp_path / folder, "same") for folder in ("one", "other")]
    service = Service(Settings())
    loader = Loader(service.models, Repository(), lambda bundle: fakes.open(bundle, service))
    with pytest.raises(StartupError, match=rf"{paths[0]} and {paths[1]} are both called same"):
        await loader.start([partial(open_bundle, path) for path in paths])
    await service.models.close(1)
