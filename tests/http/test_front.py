"""What every request gets: an id, one log line, one count, and an answer even when we are wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from service.bundle import Bundle
from service.errors import StartupError
from service.logs import JsonFormatter, TextFormatter
from service.manifest import Manifest
from service.runners.base import Array, FakeRunner
from tests.fixtures.fakes import fake_bundle, fake_tokenizer
from tests.http.conftest import OpenClient, app_of
from tests.http.test_bodies import check_error

BODY = {"input": "the cat"}


async def test_a_good_request_id_is_kept_and_a_bad_one_replaced(client: httpx2.AsyncClient) -> None:
    async def echoed(sent: str | None) -> str:
        headers = {} if sent is None else {"x-request-id": sent}
        return str((await client.post("/v1/encode", json=BODY, headers=headers)).headers["x-request-id"])

    assert await echoed("trace-1.a:b/c+d=") == "trace-1.a:b/c+d="
    for bad in (None, "", "a b", "x" * 129, 'quote"'):
        assert await echoed(bad) not in (bad, "")
    assert await echoed(None) != await echoed(None)
    assert (await client.get("/nowhere")).headers["x-request-id"]


async def test_one_line_a_request_without_the_callers_text(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "zebraquartz"
    with caplog.at_level(logging.DEBUG):
        await client.post("/v1/encode", json={"input": [secret, "cat"]})
        await client.post("/v1/encode", json={"input": secret, secret: 1})
        await client.get(f"/{secret}?q={secret}")
        await client.get("/health/live")
    ours = [record for record in caplog.records if not record.name.startswith("httpx")]
    lines = [record for record in ours if record.name == "qkv.access"]
    assert [record.levelno for record in lines] == [logging.INFO] * 3 + [logging.DEBUG]
    fields: list[dict[str, Any]] = [record.fields for record in lines]  # type: ignore[attr-defined]
    assert [(f["route"], f["status"], f["items"]) for f in fields] == [
        ("/v1/encode", 200, 2),
        ("/v1/encode", 400, 0),
        ("unmatched", 404, 0),
        ("/health/live", 200, 0),
    ]
    assert fields[1]["code"] == "unknown_field"
    assert [f.get("model") for f in fields] == ["fake", None, None, None]
    assert fields[0]["tokens"] > 4
    for formatter in (TextFormatter(), JsonFormatter()):
        assert not [record for record in ours if secret in formatter.format(record)]
    assert json.loads(JsonFormatter().format(lines[0]))["request_id"] == fields[0]["request_id"]
    assert "status=200" in TextFormatter().format(lines[0])


async def test_a_bug_is_a_500_that_tells_only_where_to_look(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = app_of(client).service.models.get("fake")
    assert engine is not None

    async def broken(request: object) -> None:
        raise KeyError("a detail of ours")

    monkeypatch.setattr(engine, "encode", broken)
    answer = await client.post("/v1/encode", json=BODY, headers={"x-request-id": "find-me"})
    message = check_error(answer, 500, code="internal_error")
    assert "find-me" in message
    assert "detail" not in message
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "find-me" in failed[0].getMessage()
    assert failed[0].exc_info


async def test_a_failing_model_is_a_500_and_its_neighbours_are_answered(open_client: OpenClient) -> None:
    boom = fake_tokenizer().token_to_id("boom")

    def explode(inputs: Mapping[str, Array]) -> None:
        if (inputs["input_ids"] == boom).any():
            raise RuntimeError("boom")

    client = await open_client(FakeRunner(on_call=explode))
    texts = ["the cat"] * 8 + ["boom"] + ["a dog"] * 8
    answers = await asyncio.gather(*(client.post("/v1/embeddings", json={"input": text}) for text in texts))
    assert [answer.status_code for answer in answers] == [200] * 8 + [500] + [200] * 8
    check_error(answers[8], 500)


async def test_metrics_count_what_happened(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/encode", json={"input": ["the cat", "dog"], "include": ["attention"]})
    await client.post("/v1/embeddings", json={"input": []})
    text = (await client.get("/metrics")).text
    for line in (
        'qkv_requests_total{model="fake",route="/v1/encode",status="200"} 1.0',
        'qkv_requests_total{model="fake",route="/v1/embeddings",status="400"} 1.0',
        'qkv_errors_total{code="invalid_value",model="fake"} 1.0',
        'qkv_items_total{model="fake",route="/v1/encode"} 2.0',
        'qkv_tokens_total{model="fake",route="/v1/encode"} 7.0',
        'qkv_attention_requests_total{model="fake"} 1.0',
        'qkv_request_seconds_count{model="fake",route="/v1/encode"} 1.0',
        'qkv_call_tokens_sum{model="fake",role="attend"} 7.0',
        "qkv_ready 1.0",
        'qkv_model_ready{model="fake"} 1.0',
        'qkv_queue_tokens{model="fake"} 0.0',
        "qkv_max_queue_tokens 1e+06",
        'qkv_max_call_tokens{model="fake"} 256.0',
        "qkv_requests_in_flight 0.0",
        'qkv_runner_info{backend="fake",model="fake",num_threads="1",num_workers="1",provider="FakeProvider"} 1.0',
    ):
        assert line in text, text
    assert "process_resident_memory_bytes" in text


async def test_while_loading_only_the_probes_answer(
    open_client: OpenClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    may_load = threading.Event()

    def prepare() -> Bundle[Manifest]:
        assert may_load.wait(10)
        return fake_bundle(tmp_path_factory.mktemp("late"))

    client = await open_client(prepare=prepare)
    assert (await client.get("/health/live")).status_code == 200
    for answer in (
        await client.get("/health/ready"),
        await client.post("/v1/encode", json=BODY),
        await client.post("/v1/embeddings", content=b"not even JSON"),
        await client.get("/v1/models"),
    ):
        check_error(answer, 503, code="not_ready")
        assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert (await client.get("/health")).json()["status"] == "unready"
    assert "qkv_ready 0.0" in (await client.get("/metrics")).text
    may_load.set()
    while (await client.get("/health/ready")).status_code != 200:  # noqa: ASYNC110 - only HTTP tells
        await asyncio.sleep(0.005)
    assert (await client.post("/v1/encode", json=BODY)).status_code == 200


async def test_a_bundle_that_cannot_be_served_never_becomes_ready(
    open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    def prepare() -> Bundle[Manifest]:
        raise StartupError("manifest.json: name: a fault")

    client = await open_client(prepare=prepare)
    service = app_of(client).service
    while service.failure is None:  # noqa: ASYNC110 - set by the loader's thread
        await asyncio.sleep(0.005)
    check_error(await client.get("/health/ready"), 503)
    assert (await client.get("/health/live")).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "cannot start: manifest.json: name: a fault"
    ]


async def test_while_draining_new_work_is_refused_and_old_work_is_finished(open_client: OpenClient) -> None:
    may_run = threading.Event()
    client = await open_client(FakeRunner(on_call=lambda inputs: _wait(may_run)))
    old = asyncio.create_task(client.post("/v1/encode", json=BODY))
    service = app_of(client).service
    while service.num_in_flight == 0:  # noqa: ASYNC110 - set by the app
        await asyncio.sleep(0.005)
    service.is_draining = True
    for answer in (await client.post("/v1/encode", json=BODY), await client.get("/health/ready")):
        check_error(answer, 503, code="draining")
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert answer.headers["connection"] == "close"
    assert (await client.get("/health/live")).status_code == 200
    may_run.set()
    assert (await old).status_code == 200
    assert service.num_in_flight == 0


def _wait(event: threading.Event) -> None:
    assert event.wait(10)
