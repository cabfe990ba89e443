"""The Open Inference Protocol over a text model: its answers, its refusals, and its error shape for every error."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from service.api.oip_schema import OipAnswer, OipModel, OipModelReady, OipReady, OipServer
from service.api.oip_wire import read_tensors
from service.runners.base import Array, FakeRunner
from tests.fixtures.fakes import fake_bundle, fake_tokenizer
from tests.http.conftest import OpenClient, app_of, wait_ready

MODEL = "/v2/models/fake"
INFER = f"{MODEL}/infer"
TEXTS = ["the cat", "", "a dog on the river"]


def body_of(texts: list[str], **fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}], **fields}


def oip_error(answer: httpx2.Response, status: int) -> str:
    """The error body of this protocol. -> its message"""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.content) <= 8192
    body = answer.json()
    assert set(body) == {"error"}
    assert isinstance(body["error"], str)
    assert body["error"]
    return body["error"]


def output(answer: httpx2.Response, name: str) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = {fields["name"]: fields for fields in answer.json()["outputs"]}[name]
    return found


async def test_the_server_and_its_model_are_told(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    OipReady.model_validate((await client.get("/v2/health/ready")).json())
    server = OipServer.model_validate((await client.get("/v2")).json())
    assert (server.name, server.extensions) == ("qkv", ["binary_tensor_data"])
    for path in (MODEL, f"{MODEL}/versions/1"):
        model = OipModel.model_validate((await client.get(path)).json())
        assert [(port.name, port.datatype, port.shape) for port in model.inputs] == [("text", "BYTES", [-1])]
        assert [(port.name, port.datatype, port.shape) for port in model.outputs] == [
            ("embedding", "FP32", [-1, 4]),
            ("num_tokens", "INT64", [-1]),
        ]
        ready = OipModelReady.model_validate((await client.get(f"{path}/ready")).json())
        assert (ready.name, ready.ready) == ("fake", True)
    for path in ("/v2/health/live", "/v2", MODEL, f"{MODEL}/ready"):
        assert (await client.head(path)).status_code == 200


async def test_the_vectors_are_those_of_the_native_route(client: httpx2.AsyncClient) -> None:
    native = (await client.post("/v1/encode", json={"input": TEXTS})).json()["data"]
    expected = np.array([item["embedding"] for item in native], dtype=np.float32)
    answer = await client.post(INFER, json=body_of(TEXTS, id="a request"))
    OipAnswer.model_validate(answer.json())
    assert answer.headers["embedding-space"] == "f" * 64
    assert (answer.json()["id"], answer.json()["model_name"]) == ("a request", "fake")
    found = output(answer, "embedding")
    assert (found["shape"], found["datatype"]) == ([3, 4], "FP32")
    np.testing.assert_array_equal(np.array(found["data"], dtype=np.float32).reshape(3, 4), expected)
    assert output(answer, "num_tokens")["data"] == [item["num_tokens"] for item in native]

    encoded = b"".join(struct.pack("<I", len(text)) + text.encode() for text in TEXTS)
    head = (
        b'{"parameters":{"binary_data_output":true},"inputs":[{"name":"text","shape":[3],"datatype":"BYTES",'
        b'"parameters":{"binary_data_size":%d}}]}' % len(encoded)
    )
    headers = {"inference-header-content-length": str(len(head))}
    binary = await client.post(f"{MODEL}/versions/1/infer", content=head + encoded, headers=headers)
    assert binary.headers["content-type"] == "application/octet-stream"
    num_json = int(binary.headers["inference-header-content-length"])
    vectors = np.frombuffer(binary.content[num_json : num_json + 3 * 4 * 4], dtype="<f4").reshape(3, 4)
    np.testing.assert_array_equal(vectors, expected)


async def test_only_what_is_asked_for_is_computed_and_sent(open_client: OpenClient) -> None:
    runner = FakeRunner()
    client = await open_client(runner)
    runner.shapes.clear()
    asked = body_of(TEXTS, outputs=[{"name": "num_tokens"}])
    answer = await client.post(INFER, json=asked)
    assert [fields["name"] for fields in answer.json()["outputs"]] == ["num_tokens"]
    assert "embedding-space" not in answer.headers
    assert runner.shapes == []
    mixed = [{"name": "num_tokens"}, {"name": "embedding", "parameters": {"binary_data": True}}]
    answer = await client.post(INFER, json=body_of(TEXTS, outputs=mixed))
    assert answer.headers["content-type"] == "application/octet-stream"
    text = answer.content[: int(answer.headers["inference-header-content-length"])]
    assert b'"data":[' in text
    assert len(answer.content) == len(text) + 3 * 4 * 4


async def test_a_half_surrogate_is_the_replacement_character(client: httpx2.AsyncClient) -> None:
    lone = rb'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["the \ud83d cat"]}]}'
    answer = await client.post(INFER, content=lone)
    same = await client.post(INFER, json=body_of(["the \ufffd cat"]))
    assert output(answer, "embedding")["data"] == output(same, "embedding")["data"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "inputs: this field is required"),
        ([], "body: a JSON object is expected, got an empty list"),
        ({"inputs": []}, "inputs: a list of tensors is expected, got an empty list"),
        ({"inputs": {}}, "inputs: a list of tensors is expected, got an object"),
        ({"inputs": ["text"]}, "inputs[0]: an object is expected, got a string"),
        ({"inputs": [{"name": "text", "datatype": "BYTES"}]}, "inputs[0].shape: this field is required"),
        (
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}]},
            "inputs[0].shape[0]: an integer from 0 is expected, got -1",
        ),
        (
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [True]}]},
            "inputs[0].shape[0]: an integer from 0 is expected, got a boolean",
        ),
        (
            {"inputs": [{"name": "texts", "datatype": "BYTES", "shape": [1], "data": ["a"]}]},
            "inputs: this model takes text, got 'texts'",
        ),
        (
            {"inputs": [{"name": "text", "datatype": "FP32", "shape": [1], "data": [1]}]},
            "inputs.text: BYTES needed, got FP32",
        ),
        (
            {"inputs": [{"name": "text", "datatype": "FP64", "shape": [1], "data": [1]}]},
            "inputs.text: BYTES needed, got another one; taken are BOOL, INT32, INT64, FP16, FP32, BYTES",
        ),
        (body_of(["a", "b"]) | {"id": 3}, "id: a string is expected, got 3"),
        (body_of(["a"] * 5), "inputs.text: axis batch: 1 to 4 allowed, got 5"),
        (body_of([]), "inputs.text: axis batch: 1 to 4 allowed, got 0"),
        (body_of(["a", "dog " * 100]), "inputs.text[1]: 64 tokens allowed"),
        (body_of(["a"], outputs=[{"name": "vector"}]), "outputs: this model has embedding, num_tokens, got 'vector'"),
        (body_of(["a"], outputs=[{"name": "embedding"}] * 2), "outputs: each one once, got embedding more than once"),
        (
            body_of(["a"], outputs=[{"name": "embedding", "parameters": {"binary_data": 1}}]),
            "outputs.embedding: binary_data is true or false, got 1",
        ),
        (
            body_of(["a"], outputs=[{"name": "embedding", "parameters": {"classification": 1}}]),
            "outputs.embedding: classification is not taken",
        ),
        (body_of(["a"], parameters={"binary_data_output": "yes"}), "parameters: binary_data_output is true or false"),
        ({"inputs": [body_of(["a"])["inputs"][0]] * 2}, "inputs: each tensor once, got text more than once"),
        (
            {"inputs": [body_of(["a"])["inputs"][0] | {"parameters": {"binary_data_size": 1}}]},
            "inputs.text: has `data` and `binary_data_size`",
        ),
        (
            {
                "inputs": [
                    {
                        "name": "text",
                        "shape": [1],
                        "datatype": "BYTES",
                        "parameters": {"shared_memory_region": "r"},
                    }
                ]
            },
            "inputs.text: shared memory is not taken",
        ),
    ],
)
async def test_a_bad_request_is_told_in_the_protocols_shape(open_client: OpenClient, body: Any, message: str) -> None:
    client = await open_client(max_items=4)
    assert message in oip_error(await client.post(INFER, json=body), 400)


@pytest.mark.parametrize("length", ["x", "-1", "", "1.5", "1000", "9" * 30, "0", "3"])
async def test_a_bad_header_length_is_refused(client: httpx2.AsyncClient, length: str) -> None:
    headers = {"inference-header-content-length": length}
    answer = await client.post(INFER, json=body_of(["a"]), headers=headers)
    message = oip_error(answer, 400)
    assert ("invalid JSON" if length == "3" else "Inference-Header-Content-Length") in message


async def test_what_follows_the_json_must_be_what_it_says(client: httpx2.AsyncClient) -> None:
    head = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}}]}'
    headers = {"inference-header-content-length": str(len(head))}
    short = await client.post(INFER, content=head + b"\1\0\0\0", headers=headers)
    assert oip_error(short, 400) == (
        "inputs.text: binary_data_size is 5, only 4 bytes are left of the body behind the JSON"
    )
    long = await client.post(INFER, content=head + b"\1\0\0\0ab", headers=headers)
    assert oip_error(long, 400) == "body: 1 bytes are left after the last tensor"
    no_header = await client.post(INFER, content=head + b"\1\0\0\0a")
    assert "invalid JSON" in oip_error(no_header, 400)


async def test_names_with_slashes_versions_and_methods(client: httpx2.AsyncClient) -> None:
    for method, path, status in (
        ("GET", "/v2/nowhere", 404),
        ("GET", "/v2/models/org/other", 404),
        ("GET", "/v2/models/org/other/ready", 404),
        ("GET", f"{MODEL}/versions/2", 404),
        ("GET", f"{MODEL}/versions/2/ready", 404),
        ("POST", "/v2/models/org/other/infer", 404),
        ("POST", f"{MODEL}/versions/2/infer", 404),
        ("POST", f"{MODEL}%0A/infer", 404),
        ("GET", INFER, 405),
        ("GET", f"{MODEL}/versions/1/infer", 405),
        ("POST", "/v2/health/ready", 405),
        ("DELETE", MODEL, 405),
    ):
        answer = await client.request(method, path, json=body_of(["a"]) if method == "POST" else None)
        message = oip_error(answer, status)
        assert ("allow" in answer.headers) == (status == 405)
        if "versions/2" in path:
            assert message == "version: this model has version 1 only"


@pytest.mark.parametrize("path", ["stats", "config", "versions/1/stats", "trace/setting", "config/ready"])
async def test_what_a_model_does_not_have_is_no_path(client: httpx2.AsyncClient, path: str) -> None:
    assert oip_error(await client.get(f"{MODEL}/{path}"), 404).startswith("there is no such path; /docs lists")


async def test_a_name_may_have_slashes(open_client: OpenClient, tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path, name="org/fake")
    client = await open_client(prepare=lambda: bundle)
    await wait_ready(client)
    assert (await client.get("/v2/models/org/fake")).json()["name"] == "org/fake"
    assert "only `org/fake` is loaded" in oip_error(await client.get("/v2/models/org/stats"), 404)
    assert output(await client.post("/v2/models/org/fake/infer", json=body_of(["a"])), "num_tokens")["data"] == [3]
    assert (await client.post("/v2/models/org/fake/versions/1/infer", json=body_of(["a"]))).status_code == 200


async def test_media_types_and_sizes(open_client: OpenClient) -> None:
    client = await open_client(max_body_bytes=1024)
    for media in ("application/json", "application/octet-stream", None):
        headers: dict[str, str] = {} if media is None else {"content-type": media}
        content = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["a"]}]}'
        assert (await client.post(INFER, content=content, headers=headers)).status_code == 200
    for headers in ({"content-type": "text/plain"}, {"content-encoding": "gzip"}):
        oip_error(await client.post(INFER, content=b"{}", headers=headers), 415)
    assert "1024 bytes allowed" in oip_error(await client.post(INFER, content=bytes(2000)), 413)


async def test_another_space_is_refused(client: httpx2.AsyncClient) -> None:
    for sent, status in (("f" * 64, 200), ("e" * 64, 412)):
        answer = await client.post(INFER, json=body_of(["a"]), headers={"embedding-space": sent})
        assert answer.status_code == status
    assert "embedding_space" in oip_error(answer, 412)


async def test_an_answer_over_the_limit_names_binary(open_client: OpenClient) -> None:
    client = await open_client(max_response_bytes=1024)
    message = oip_error(await client.post(INFER, json=body_of(["a"] * 30)), 400)
    assert message.startswith("outputs: an answer of 1024 bytes allowed")
    assert "ask for `binary_data` (4 bytes a value)" in message
    binary = body_of(["a"] * 30, parameters={"binary_data_output": True})
    assert (await client.post(INFER, json=binary)).status_code == 200


async def test_failures_and_refusals_of_the_server_have_the_shape_too(open_client: OpenClient) -> None:
    boom = fake_tokenizer().token_to_id("boom")
    may_run = threading.Event()

    def explode(inputs: Mapping[str, Array]) -> None:
        if (inputs["input_ids"] == boom).any():
            raise RuntimeError("boom")
        assert may_run.wait(10)

    may_run.set()
    client = await open_client(FakeRunner(on_call=explode), max_queue_tokens=8, request_timeout_s=1)
    assert "boom" not in oip_error(await client.post(INFER, json=body_of(["boom"])), 500)
    assert "8 tokens allowed in one request" in oip_error(await client.post(INFER, json=body_of(["a"] * 3)), 400)
    may_run.clear()
    slow = asyncio.create_task(client.post(INFER, json=body_of(["a", "a"])))
    service = app_of(client).service
    while not any(engine.health().queued_tokens for engine in service.models):  # noqa: ASYNC110 - set by the app
        await asyncio.sleep(0.005)
    full = await client.post(INFER, json=body_of(["a"]))
    assert "the queue is full" in oip_error(full, 429)
    assert 1 <= int(full.headers["retry-after"]) <= 120
    assert "1 s allowed" in oip_error(await slow, 504)
    may_run.set()
    service.is_draining = True
    for path, method in ((INFER, "POST"), ("/v2/health/ready", "GET"), (MODEL, "GET"), (f"{MODEL}/ready", "GET")):
        answer = await client.request(method, path, json=body_of(["a"]) if method == "POST" else None)
        assert "shutting down" in oip_error(answer, 503)
        assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert (await client.get("/v2/health/live")).status_code == 200


async def test_a_large_request_is_parsed_beside_the_loop(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return read_tensors(*arguments, **options)

    monkeypatch.setattr("service.api.oip.read_tensors", noted)
    for text in ("a", "a " * 100_000):
        await client.post(INFER, json=body_of([text]))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
    metrics = (await client.get("/metrics")).text
    assert 'qkv_requests_total{model="fake",route="/v2/models/{model}/infer",status="200"} 1.0' in metrics
    assert 'qkv_items_total{model="fake",route="/v2/models/{model}/infer"} 1.0' in metrics
