"""Triton's own client, unmodified, against live servers: a text bundle and a tensor bundle."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from service.runners.base import Array
from tests.fixtures.live import LiveServer, serving
from tests.fixtures.tensor_bundle import MAX_SEQ, NAME, make_inputs, reference
from tests.http.process import read_answer

DATATYPES = {"hidden": "FP32", "mask": "BOOL", "ids": "INT64", "shift": "FP16"}
TEXTS = ["héllo 😀 world", "", "a cat is on the river bank"]


@pytest.fixture(scope="module")
def tensor_server(tensor_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("logs") / "server.log", str(tensor_bundle)) as server:
        yield server


@pytest.fixture(scope="module")
def text_server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("logs") / "server.log", str(tiny_bundle)) as server:
        yield server


def client_of(server: LiveServer) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(server.url.removeprefix("http://"))


@pytest.fixture
def tensors(tensor_server: LiveServer) -> Iterator[triton.InferenceServerClient]:
    with client_of(tensor_server) as client:
        yield client


@pytest.fixture
def texts(text_server: LiveServer) -> Iterator[triton.InferenceServerClient]:
    with client_of(text_server) as client:
        yield client


def sent(inputs: Mapping[str, Array], *, binary: tuple[str, ...] = tuple(DATATYPES)) -> list[triton.InferInput]:
    found = []
    for name, values in inputs.items():
        tensor = triton.InferInput(name, list(values.shape), DATATYPES[name])
        found.append(tensor.set_data_from_numpy(values, binary_data=name in binary))
    return found


def refused(client: triton.InferenceServerClient, model: str, inputs: Any, status: int = 400, **options: Any) -> str:
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, inputs, **options)
    assert error.value.status() == str(status)
    return str(error.value.message())


def check(result: triton.InferResult, inputs: Mapping[str, Array], names: list[str]) -> None:
    expected = reference(inputs)
    for name in names:
        found = result.as_numpy(name)
        assert (found.dtype, found.shape) == (expected[name].dtype, expected[name].shape)
        np.testing.assert_allclose(found.astype(np.float64), expected[name].astype(np.float64), atol=1e-5)


def test_server_and_model_are_told(tensors: triton.InferenceServerClient, texts: triton.InferenceServerClient) -> None:
    for client, name in ((tensors, NAME), (texts, "bert_mean")):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, "1")
        assert not client.is_model_ready("another")
        assert not client.is_model_ready(name, "2")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        assert client.get_model_metadata(name, "1") == client.get_model_metadata(name)
    model = tensors.get_model_metadata(NAME)
    assert {port["name"]: (port["datatype"], port["shape"]) for port in model["inputs"]} == {
        "hidden": ("FP32", [-1, -1, 8]),
        "mask": ("BOOL", [-1, -1]),
        "ids": ("INT64", [-1, -1]),
        "shift": ("FP16", [-1, 8]),
    }
    assert [port["name"] for port in model["outputs"]] == list(reference(make_inputs(1, 1)))
    assert texts.get_model_metadata("bert_mean")["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]


def test_tensors_of_every_type_as_binary_and_as_json(tensors: triton.InferenceServerClient) -> None:
    inputs = make_inputs(3, 7)
    names = list(reference(inputs))
    binary = tensors.infer(NAME, sent(inputs), request_id="my request")
    check(binary, inputs, names)
    assert binary.get_response()["id"] == "my request"
    wanted = [triton.InferRequestedOutput(name, binary_data=name == "doubled") for name in names]
    mixed = tensors.infer(NAME, sent(inputs, binary=("shift",)), outputs=wanted, model_version="1")
    check(mixed, inputs, names)
    in_json = [name for name in names if "data" in mixed.get_output(name)]
    assert in_json == [name for name in names if name != "doubled"]
    for name in names:
        np.testing.assert_array_equal(mixed.as_numpy(name), binary.as_numpy(name))


def test_masks_may_be_left_out_and_outputs_chosen(tensors: triton.InferenceServerClient) -> None:
    inputs = make_inputs(2, 5)
    without = [tensor for tensor in sent(inputs) if tensor.name() != "mask"]
    result = tensors.infer(NAME, without, outputs=[triton.InferRequestedOutput("output")])
    check(result, inputs | {"mask": np.ones((2, 5), dtype=bool)}, ["output"])
    assert result.as_numpy("weights") is None


def test_texts_as_bytes_and_as_json(texts: triton.InferenceServerClient, text_server: LiveServer) -> None:
    native = text_server.post("/v1/encode", {"input": TEXTS}).json()["data"]
    for is_binary in (True, False):
        tensor = triton.InferInput("text", [len(TEXTS)], "BYTES")
        tensor.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=is_binary)
        outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in ("embedding", "num_tokens")]
        for wanted in (outputs, None):
            result = texts.infer("bert_mean", [tensor], outputs=wanted)
            vectors, counts = result.as_numpy("embedding"), result.as_numpy("num_tokens")
            assert (vectors.dtype, counts.dtype) == (np.float32, np.int64)
            np.testing.assert_allclose(vectors, [item["embedding"] for item in native], atol=1e-5)
            assert counts.tolist() == [item["num_tokens"] for item in native]


def test_what_cannot_be_is_refused_in_our_words(
    tensors: triton.InferenceServerClient, texts: triton.InferenceServerClient
) -> None:
    inputs = make_inputs(2, 5)
    assert "only `by-hand` is loaded" in refused(tensors, "another", sent(inputs), 404)
    assert "version 1 only" in refused(tensors, NAME, sent(inputs), 404, model_version="7")
    for name, values, message in (
        ("hidden", inputs["hidden"][:, :, :7], "inputs.hidden: shape [batch, seq, 8] needed, got [2, 5, 7]"),
        ("hidden", inputs["hidden"][0], "inputs.hidden: shape [batch, seq, 8] needed, got 2 axes"),
        ("mask", inputs["mask"][:, :4], "inputs.mask: axis seq has size 4, in inputs.hidden it has 5"),
        ("ids", inputs["ids"][:1], "inputs.ids: axis batch has size 1, in inputs.hidden it has 2"),
        ("ids", inputs["ids"] + 100, "inputs.ids: 0 to 9 allowed, got"),
        (
            "hidden",
            np.full_like(inputs["hidden"], np.nan),
            "inputs.hidden: finite numbers needed, got nan at [0, 0, 0]",
        ),
        ("shift", np.full_like(inputs["shift"], np.inf), "inputs.shift: finite numbers needed, got inf at [0, 0]"),
    ):
        assert message in refused(tensors, NAME, sent(inputs | {name: np.ascontiguousarray(values)}))
    assert "axis seq: 1 to 64 allowed, got 65" in refused(tensors, NAME, sent(make_inputs(1, MAX_SEQ + 1)))
    wrong = triton.InferInput("ids", [2, 5], "INT32").set_data_from_numpy(inputs["ids"].astype(np.int32))
    others = [tensor for tensor in sent(inputs) if tensor.name() != "ids"]
    assert refused(tensors, NAME, [wrong, *others]) == "inputs.ids: INT64 needed, got INT32"
    assert refused(tensors, NAME, others) == "inputs: ids is missing"
    named = triton.InferInput("idz", [2, 5], "INT64").set_data_from_numpy(inputs["ids"])
    assert "this model takes hidden, mask, ids, shift, got 'idz'" in refused(tensors, NAME, [named, *others])
    unknown = [triton.InferRequestedOutput("outptu")]
    assert "outputs: this model has output" in refused(tensors, NAME, sent(inputs), outputs=unknown)
    half = [triton.InferRequestedOutput("doubled", binary_data=False)]
    assert "outputs.doubled: JSON has no FP16" in refused(tensors, NAME, sent(inputs), outputs=half)
    assert "inputs.shift: JSON has no FP16" in refused(tensors, NAME, sent(inputs, binary=("hidden",)))
    compressed = refused(tensors, NAME, sent(inputs), 415, request_compression_algorithm="gzip")
    assert "content-encoding" in compressed
    text = triton.InferInput("text", [1], "BYTES").set_data_from_numpy(np.array([b"a\xff"], dtype=object))
    assert "inputs.text: element 0 is not UTF-8 at byte 1" in refused(texts, "bert_mean", [text])
    check(tensors.infer(NAME, sent(inputs)), inputs, ["output"])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e39", "1e400"])
def test_json_numbers_that_are_none_are_refused(tensor_server: LiveServer, number: str) -> None:
    body = {
        "inputs": [
            {"name": "hidden", "shape": [1, 1, 8], "datatype": "FP32", "data": [0] * 7 + ["NUMBER"]},
            {"name": "ids", "shape": [1, 1], "datatype": "INT64", "data": [1]},
        ],
        "outputs": [{"name": "output"}],
    }
    content = json.dumps(body).replace('"NUMBER"', number).encode()
    shift = {"name": "shift", "shape": [1, 8], "datatype": "FP16", "parameters": {"binary_data_size": 16}}
    content = content.replace(b'], "outputs"', b", " + json.dumps(shift).encode() + b'], "outputs"')
    headers = {"inference-header-content-length": str(len(content))}
    url = f"{tensor_server.url}/v2/models/{NAME}/infer"
    answer = httpx2.post(url, content=content + bytes(16), headers=headers, timeout=30)
    assert answer.status_code == 400
    assert "inputs.hidden: finite numbers needed" in answer.json()["error"]
    assert "[0, 0, 7]" in answer.json()["error"]


def test_a_short_binary_body_and_a_body_that_is_too_large(tensor_server: LiveServer) -> None:
    tensor = {"name": "ids", "shape": [2, 5], "datatype": "INT64", "parameters": {"binary_data_size": 80}}
    text = json.dumps({"inputs": [tensor]}).encode()
    port = int(tensor_server.url.rsplit(":", 1)[1])

    def post(rest: bytes, declared: int | None = None) -> tuple[int, str]:
        length = len(text) + len(rest) if declared is None else declared
        head = (
            f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nhost: test\r\ncontent-type: application/octet-stream\r\n"
            f"inference-header-content-length: {len(text)}\r\ncontent-length: {length}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(head.encode() + text + rest)
            status, body = read_answer(connection)
        answer = json.loads(body)
        assert set(answer) == {"error"}
        return status, answer["error"]

    assert post(bytes(79)) == (
        400,
        "inputs.ids: binary_data_size is 80, only 79 bytes are left of the body behind the JSON",
    )
    tensor["shape"] = [2, 6]
    text = json.dumps({"inputs": [tensor]}).encode()
    assert post(bytes(80)) == (400, "inputs.ids: 96 bytes needed by its shape and INT64, got 80")
    status, message = post(b"", 2**40)
    assert (status, "bytes allowed" in message) == (413, True)
    # Half a body, and then silence: nothing is answered, nothing is harmed.
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 999\r\n\r\n".encode())
        connection.sendall(text)
    assert tensor_server.get("/v2/health/ready").json() == {"ready": True, "live": True}


def test_fifty_concurrent_requests_equal_their_single_runs(tensor_server: LiveServer) -> None:
    rng = np.random.default_rng(1)
    requests = [make_inputs(int(rng.integers(1, 4)), int(rng.integers(1, MAX_SEQ)), seed=index) for index in range(50)]
    url, names = f"{tensor_server.url}/v2/models/{NAME}/infer", ("output", "pooled", "weights")

    def infer(inputs: Mapping[str, Array]) -> dict[str, Array]:
        body, num_json = triton.InferenceServerClient.generate_request_body(sent(inputs))
        headers = {"Inference-Header-Content-Length": str(num_json)}
        answer = httpx2.post(url, content=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        num_json = int(answer.headers["inference-header-content-length"])
        result = triton.InferenceServerClient.parse_response_body(answer.content, header_length=num_json)
        return {name: result.as_numpy(name) for name in names}

    alone = [infer(inputs) for inputs in requests]
    with ThreadPoolExecutor(50) as pool:
        together = list(pool.map(infer, requests))
    for one, other in zip(alone, together, strict=True):
        for name in names:
            assert np.abs(one[name] - other[name]).max() <= 1e-5
