"""Each route's answers: the shape on the wire is the documented one, whatever the format."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from typing import Any

import httpx2
import numpy as np
import pytest
import safetensors.numpy

from service.api.schema import EmbeddingsAnswer, EncodeAnswer, Health, ModelDetail, ModelList
from service.runners.base import FakeRunner
from tests.http.conftest import OpenClient, app_of
from tests.http.test_bodies import check_error

EVERYTHING = ["embedding", "tokens", "outputs", "attention"]


def floats(data: str) -> Any:
    return np.frombuffer(base64.b64decode(data), dtype="<f4")


async def test_encode_answers_what_was_included(client: httpx2.AsyncClient) -> None:
    body = {"input": ["the cat", ["a dog", "a river"], [2, 30, 3]], "include": EVERYTHING}
    answer = await client.post("/v1/encode", json=body)
    assert answer.status_code == 200
    found = EncodeAnswer.model_validate_json(answer.content, strict=False)
    assert [item.index for item in found.data] == [0, 1, 2]
    assert [item.num_tokens for item in found.data] == [4, 7, 3]
    assert found.usage.prompt_tokens == found.usage.total_tokens == 14
    pair = found.data[1].tokens
    assert pair is not None
    assert [token.sequence for token in pair] == [None, 0, 0, None, 1, 1, None]
    plain = (await client.post("/v1/encode", json={"input": "the cat"})).json()
    assert set(plain["data"][0]) == {"index", "embedding", "num_tokens", "truncated"}
    assert answer.headers["embedding-space"] == "f" * 64


async def test_formats_carry_the_same_numbers(client: httpx2.AsyncClient) -> None:
    body = {"input": ["the cat", "dog"], "include": EVERYTHING, "attention": {"layers": "all"}}
    plain = (await client.post("/v1/encode", json=body)).json()["data"]
    packed = (await client.post("/v1/encode", json=body | {"encoding_format": "base64"})).json()["data"]
    binary = await client.post("/v1/encode", json=body, headers={"accept": "application/vnd.safetensors"})
    assert binary.headers["content-type"] == "application/vnd.safetensors"
    assert binary.headers["embedding-space"] == "f" * 64
    tensors = safetensors.numpy.load(binary.content)
    for index, item in enumerate(plain):
        pairs = [(item["embedding"], packed[index]["embedding"], f"{index}.embedding")]
        pairs.append((item["outputs"]["data"], packed[index]["outputs"]["data"], f"{index}.outputs"))
        for layer, other in zip(item["attention"], packed[index]["attention"], strict=True):
            pairs.append((layer["weights"], other["weights"], f"{index}.attention.{layer['layer']}"))
        for values, data, name in pairs:
            np.testing.assert_allclose(tensors[name], values, atol=1e-7)
            np.testing.assert_array_equal(floats(data), tensors[name].ravel())


async def test_embeddings_are_openais_list(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/embeddings", json={"input": ["the cat", "", "dog"], "model": "fake"})
    found = EmbeddingsAnswer.model_validate_json(answer.content, strict=False)
    assert [item.index for item in found.data] == [0, 1, 2]
    assert set(answer.json()["data"][0]) == {"object", "index", "embedding"}
    assert answer.json()["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    packed = await client.post("/v1/embeddings", json={"input": "the cat", "encoding_format": "base64"})
    data = packed.json()["data"][0]["embedding"]
    assert len(base64.b64decode(data)) == 4 * 4
    np.testing.assert_allclose(floats(data), answer.json()["data"][0]["embedding"], atol=1e-7)


async def test_embeddings_take_what_clients_send(client: httpx2.AsyncClient) -> None:
    nulls = dict.fromkeys(("encoding_format", "dimensions", "user", "include", "attention", "truncate", "prompt_name"))
    body = {"input": "a", "model": "fake", **nulls, "input_type": "query", "foo": {"x": 1}}
    answer = await client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200
    assert isinstance(answer.json()["data"][0]["embedding"], list)
    check_error(
        await client.post("/v1/embeddings", json={"input": "a", "encoding_format": "md5"}), 400, param="encoding_format"
    )
    check_error(await client.post("/v1/embeddings", json={"input": [["a", "b"]]}), 400, param="input[0]")
    check_error(
        await client.post("/v1/embeddings", json={"input": "a", "model": None, "include": []}), 400, param="include"
    )


async def test_embeddings_reach_attention_through_extra_fields(client: httpx2.AsyncClient) -> None:
    body = {"input": "the cat", "include": ["attention", "tokens"], "attention": {"layers": [1], "heads": "mean"}}
    answer = await client.post("/v1/embeddings", json=body)
    EmbeddingsAnswer.model_validate_json(answer.content, strict=False)
    item = answer.json()["data"][0]
    assert item["object"] == "embedding"
    assert len(item["embedding"]) == 4
    assert [layer["layer"] for layer in item["attention"]] == [1]
    assert item["attention"][0]["shape"] == [1, 4, 4]
    assert len(item["tokens"]) == 4


@pytest.mark.parametrize("path", ["/v1/encode", "/v1/embeddings"])
async def test_truncation_is_asked_for_in_every_way(client: httpx2.AsyncClient, path: str) -> None:
    text = "dog " * 200
    for refuse in (None, False, "error"):
        answer = await client.post(path, json={"input": ["a", text], "truncate": refuse})
        message = check_error(answer, 400, param="input[1]", code="context_length_exceeded")
        assert "64 tokens allowed, got 202" in message
    for cut in (True, "right", "left"):
        answer = await client.post(path, json={"input": text, "truncate": cut})
        assert answer.json()["usage"]["prompt_tokens"] == 64


async def test_dimensions_prompt_and_norm_reach_the_engine(client: httpx2.AsyncClient) -> None:
    async def vector(**options: Any) -> Any:
        answer = await client.post("/v1/encode", json={"input": "the cat"} | options)
        assert answer.status_code == 200, answer.text
        return np.array(answer.json()["data"][0]["embedding"])

    full = await vector()
    for dim in (1, 3, 4):
        short = full[:dim] / np.linalg.norm(full[:dim])
        np.testing.assert_allclose(await vector(dimensions=dim), short, atol=1e-6)
    assert np.linalg.norm(await vector(normalize=False)) > 1.1
    np.testing.assert_allclose(await vector(input="cat", prompt_name="query"), full, atol=1e-6)
    np.testing.assert_allclose(
        await vector(input=[30, 31], add_special_tokens=True), await vector(input=[2, 30, 31, 3])
    )


@pytest.mark.parametrize("path", ["/v1/encode", "/v1/embeddings"])
async def test_another_vector_space_is_refused(client: httpx2.AsyncClient, path: str) -> None:
    space = (await client.post(path, json={"input": "a"})).headers["embedding-space"]
    good = await client.post(path, json={"input": "a", "embedding_space": space}, headers={"Embedding-Space": space})
    assert good.status_code == 200
    for body, headers in (
        ({"input": "a", "embedding_space": "0" * 64}, {}),
        ({"input": "a"}, {"Embedding-Space": "0" * 64}),
        ({"input": "a", "dimensions": 2}, {"Embedding-Space": space}),
    ):
        check_error(await client.post(path, json=body, headers=headers), 412, code="embedding_space_mismatch")
    both = await client.post(path, json={"input": "a", "embedding_space": space}, headers={"Embedding-Space": "0" * 64})
    check_error(both, 400, param="embedding_space")


async def test_tokenize_gives_offsets_into_the_text_as_sent(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/tokenize", json={"input": ["the  CAT", "zebra"]})
    found = EncodeAnswer.model_validate_json(answer.content, strict=False)
    assert "embedding-space" not in answer.headers
    tokens = found.data[0].tokens
    assert tokens is not None
    assert [(token.text, token.start, token.end) for token in tokens if not token.special] == [
        ("the", 0, 3),
        ("cat", 5, 8),
    ]
    ids = [token.id for token in tokens]
    by_text = await client.post("/v1/embeddings", json={"input": "the  CAT"})
    by_ids = await client.post("/v1/embeddings", json={"input": ids})
    assert by_text.content == by_ids.content
    check_error(await client.post("/v1/tokenize", json={"input": "a", "dimensions": 3}), 400, code="unknown_field")


async def test_models_tell_what_is_served(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/v1/models")
    model = ModelList.model_validate_json(answer.content, strict=False).data[0]
    assert model.id == "fake"
    assert model.provider == "FakeProvider"
    assert model.attention == {"layers": 2, "heads": 2, "head_dim": 2}
    assert model.limits["max_items"] == 2048
    detail = ModelDetail.model_validate_json((await client.get("/v1/models/fake")).content, strict=False)
    assert detail.manifest["name"] == "fake"
    check_error(await client.get("/v1/models/org/other"), 404, code="model_not_found")
    for path in ("/v1/encode", "/v1/embeddings", "/v1/tokenize"):
        answer = await client.post(path, json={"input": "a", "model": "other"})
        check_error(answer, 404, param="model", code="model_not_found")


async def test_health_tells_what_runs(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/health/live")).json() == {"status": "live"}
    assert (await client.get("/health/ready")).json() == {"status": "ready"}
    for path in ("/health/live", "/health/ready", "/health"):
        assert (await client.head(path)).status_code == 200
    found = Health.model_validate_json((await client.get("/health")).content)
    (model,) = found.models
    assert (found.status, model.status, model.id, model.provider) == ("ready", "ready", "fake", "FakeProvider")


async def test_errors_of_every_kind_have_one_body(client: httpx2.AsyncClient) -> None:
    check_error(await client.get("/nowhere"), 404, code="not_found")
    check_error(await client.post("/v1/encode/", json={}), 404, code="not_found")
    check_error(await client.get("/docs/assets/../../app.py"), 404, code="not_found")
    for path in ("/v1/encode", "/v1/embeddings", "/v1/tokenize"):
        answer = await client.get(path)
        check_error(answer, 405, code="method_not_allowed")
        assert answer.headers["allow"] == "POST"
    answer = await client.post("/health/live")
    check_error(answer, 405, code="method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


async def test_a_full_queue_is_429_for_a_text_and_for_a_list(open_client: OpenClient) -> None:
    may_run = threading.Event()
    client = await open_client(FakeRunner(on_call=lambda inputs: _hold(may_run)), max_queue_tokens=8)
    held = [asyncio.create_task(client.post("/v1/embeddings", json={"input": "cat"})) for _ in range(2)]
    service = app_of(client).service
    while sum(engine.health().queued_tokens for engine in service.models) < 6:  # noqa: ASYNC110 - set by the app
        await asyncio.sleep(0.005)
    for value in ("the cat", ["the cat"]):
        answer = await client.post("/v1/embeddings", json={"input": value})
        check_error(answer, 429, code="queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert (await client.get("/health/ready")).status_code == 200
    may_run.set()
    assert [(await answer).status_code for answer in held] == [200, 200]
    assert 'qkv_errors_total{code="queue_full",model="fake"} 2.0' in (await client.get("/metrics")).text
    assert (await client.post("/v1/embeddings", json={"input": "the cat"})).status_code == 200


def _hold(event: threading.Event) -> None:
    assert event.wait(10)


async def test_json_is_written_as_json(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/encode", json={"input": "the cat", "include": EVERYTHING})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(answer.content, parse_constant=refuse)
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
