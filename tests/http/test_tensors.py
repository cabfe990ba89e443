"""`tensors` of `/v1/encode`: what comes back, in each format, and what is refused by name."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from safetensors.numpy import load

from service.api.schema import ModelSummary, TensorsAnswer
from service.api.tensors import parse_tensors
from service.app import create_app
from service.bundle import open_bundle
from service.engine.layouts import expand
from service.runners.base import Array
from service.settings import Settings
from tests.fixtures.cross_bundle import make_cross_bundle
from tests.fixtures.cross_bundle import make_inputs as make_cross_inputs
from tests.fixtures.cross_bundle import reference as cross_reference
from tests.fixtures.tensor_bundle import DIM, HEADS, MAX_SEQ, NAME, VOCAB, make_inputs, reference
from tests.http.conftest import wait_ready

BATCH, SEQ = 3, 7
URL = "/v1/encode"
Packed = dict[str, Any]


@asynccontextmanager
async def serving(bundle: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an app that serves a bundle with its own session."""
    app = create_app(Settings(), lambda: open_bundle(bundle))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client,
    ):
        await wait_ready(client)
        yield client


@pytest.fixture
async def tensors(tensor_bundle: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving(tensor_bundle) as client:
        yield client


def packed(values: Array) -> Packed:
    data = base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()
    return {"dtype": str(values.dtype), "shape": list(values.shape), "data": data}


def unpacked(fields: Packed) -> Array:
    values: Array = np.frombuffer(base64.b64decode(fields["data"]), np.dtype(fields["dtype"]).newbyteorder("<"))
    return values.reshape(fields["shape"])


def body_of(inputs: dict[str, Array], **fields: Any) -> dict[str, Any]:
    return {"tensors": {name: packed(values) for name, values in inputs.items()}, **fields}


async def refused(client: httpx2.AsyncClient, body: dict[str, Any], *words: str, param: str, code: str) -> None:
    answer = await client.post(URL, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error
    assert all(word in error["message"] for word in words), error["message"]


async def test_outputs_come_back_by_name_row_by_row(tensors: httpx2.AsyncClient) -> None:
    inputs = make_inputs(BATCH, SEQ)
    answer = await tensors.post(URL, json=body_of(inputs, encoding_format="base64"))
    assert "embedding-space" not in answer.headers
    found, expected = TensorsAnswer.model_validate_json(answer.content, strict=False), reference(inputs)
    assert (found.model, [item.index for item in found.data]) == (NAME, [0, 1, 2])
    assert found.usage.total_tokens == BATCH * SEQ
    for index, item in enumerate(answer.json()["data"]):
        assert set(item) == {"index", "outputs"}
        assert set(item["outputs"]) == set(expected) - {"weights"}
        for name, fields in item["outputs"].items():
            values = unpacked(fields)
            assert values.dtype == expected[name].dtype
            np.testing.assert_allclose(values.astype(float), expected[name][index].astype(float), atol=1e-5)


async def test_nested_lists_and_packed_values_are_the_same(tensors: httpx2.AsyncClient) -> None:
    inputs = make_inputs(BATCH, SEQ)
    inputs["shift"] = np.round(inputs["shift"], 1)
    nested = {"tensors": {name: values.tolist() for name, values in inputs.items()}}
    flat = {name: packed(values) | {"data": values.ravel().tolist()} for name, values in inputs.items()}
    first = (await tensors.post(URL, json=body_of(inputs))).json()
    for other in (nested, {"tensors": flat}):
        assert (await tensors.post(URL, json=other)).json() == first
    shown = first["data"][0]["outputs"]["pooled"]
    np.testing.assert_allclose(shown["data"], reference(inputs)["pooled"][0], atol=1e-5)


async def test_an_output_of_one_value_a_row_is_a_number(tensors: httpx2.AsyncClient) -> None:
    inputs = make_inputs(BATCH, SEQ)
    expected = reference(inputs)["num_kept"]
    data = (await tensors.post(URL, json=body_of(inputs))).json()["data"]
    assert [item["outputs"]["num_kept"] for item in data] == [
        {"shape": [], "dtype": "int64", "data": int(count)} for count in expected
    ]
    answer = await tensors.post(URL, json=body_of(inputs), headers={"accept": "application/vnd.safetensors"})
    assert load(answer.content)["0.outputs.num_kept"].shape == ()


async def test_large_tensors_are_read_beside_the_loop(
    tensors: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return parse_tensors(*arguments)

    monkeypatch.setattr("service.api.encode.parse_tensors", noted)
    for batch, seq in ((1, 2), (60, MAX_SEQ)):
        nested = {name: values.tolist() for name, values in make_inputs(batch, seq).items()}
        answer = await tensors.post(URL, json={"tensors": nested})
        assert len(answer.json()["data"]) == batch
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_large_weights_are_expanded_beside_the_loop(
    tensors: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return expand(*arguments)

    monkeypatch.setattr("service.engine.tensor_model.expand", noted)
    options = {"include": ["attention"], "attention": {"expand": True}, "encoding_format": "base64"}
    for batch, seq in ((1, 2), (40, MAX_SEQ)):
        answer = await tensors.post(URL, json=body_of(make_inputs(batch, seq), **options))
        assert len(answer.json()["data"]) == batch
    assert {thread is threading.main_thread() for thread in threads[1:]} == {False}
    assert threads[0] is threading.main_thread()


async def test_a_mask_may_be_left_out(tensors: httpx2.AsyncClient) -> None:
    inputs = make_inputs(1, SEQ)
    inputs["mask"][:] = True
    whole = await tensors.post(URL, json=body_of(inputs))
    del inputs["mask"]
    assert (await tensors.post(URL, json=body_of(inputs))).json() == whole.json()


@pytest.mark.parametrize(("heads", "shape"), [("all", HEADS), ([1], 1), ("mean", 1)])
async def test_attention_by_head(tensors: httpx2.AsyncClient, heads: Any, shape: int) -> None:
    inputs = make_inputs(BATCH, SEQ)
    options = {"include": ["attention"], "attention": {"heads": heads}, "encoding_format": "base64"}
    data = (await tensors.post(URL, json=body_of(inputs, **options))).json()["data"]
    expected = reference(inputs)["weights"]
    wanted = {"all": expected, "mean": expected.mean(axis=1, keepdims=True)}.get(str(heads), expected[:, 1:2])
    for index, item in enumerate(data):
        assert set(item) == {"index", "attention"}
        (layer,) = item["attention"]
        assert (layer["layer"], layer["layout"], layer["offset"]) == (0, "dense", None)
        assert layer["shape"] == [shape, SEQ, SEQ]
        weights = np.frombuffer(base64.b64decode(layer["weights"]), "<f4").reshape(layer["shape"])
        np.testing.assert_allclose(weights, wanted[index], atol=1e-5)


async def test_safetensors_keep_each_type(tensors: httpx2.AsyncClient) -> None:
    inputs = make_inputs(BATCH, SEQ)
    headers = {"accept": "application/vnd.safetensors"}
    answer = await tensors.post(URL, json=body_of(inputs, include=["outputs", "attention"]), headers=headers)
    found, expected = load(answer.content), reference(inputs)
    names = {f"outputs.{name}" for name in expected if name != "weights"} | {"attention.0"}
    assert set(found) == {f"{index}.{name}" for index in range(BATCH) for name in names}
    for index in range(BATCH):
        assert found[f"{index}.outputs.doubled"].dtype == np.float16
        np.testing.assert_array_equal(found[f"{index}.outputs.kept"], expected["kept"][index])
        np.testing.assert_allclose(found[f"{index}.attention.0"], expected["weights"][index], atol=1e-5)


async def test_the_model_is_described_by_its_tensors(tensors: httpx2.AsyncClient) -> None:
    model = ModelSummary.model_validate((await tensors.get("/v1/models")).json()["data"][0])
    assert (model.kind, model.batching, model.max_sizes, model.embedding) == (
        "tensors",
        "padded",
        {"seq": MAX_SEQ},
        None,
    )
    assert model.inputs is not None
    assert [(tensor["name"], tensor["is_required"]) for tensor in model.inputs] == [
        ("hidden", True), ("mask", False), ("ids", True), ("shift", True),
    ]  # fmt: skip


def changed(**tensors: Any) -> dict[str, Any]:
    body = body_of(make_inputs(BATCH, SEQ))
    body["tensors"] |= tensors
    return body


NO_DATA: tuple[Any, ...] = ("", [])
RAGGED = [[[0.0] * DIM] * 2, [[0.0] * DIM] * 3]
FAULTS: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    "unknown": (changed(query=[1]), ("hidden, mask, ids, shift", "'query'"), "tensors", "unknown_tensor"),
    "missing": ({"tensors": {"hidden": [[[0.0] * DIM]]}}, ("ids, shift is missing",), "tensors", "missing_tensor"),
    "no object": ({"tensors": [1, 2]}, ("an object",), "tensors", "invalid_value"),
    "ragged": (changed(hidden=RAGGED), ("[2, 8] at [0]", "[3, 8] at [1]"), "tensors.hidden", "wrong_shape"),
    "a word": (changed(ids=[[1, "a"]]), ("integers", "a string", "[0][1]"), "tensors.ids", "wrong_dtype"),
    "a bool": (changed(ids=[[1, True]]), ("integers", "a boolean"), "tensors.ids", "wrong_dtype"),
    "a fraction": (changed(ids=[[1.5]]), ("integers", "a number with a fraction"), "tensors.ids", "wrong_dtype"),
    "numbers as a mask": (changed(mask=[[1, 0]]), ("true and false", "got 1"), "tensors.mask", "wrong_dtype"),
    "another type": (
        changed(hidden=packed(np.zeros((BATCH, SEQ, DIM)))), ("float32", "float64"), "tensors.hidden", "wrong_dtype"
    ),
    "another width": (
        changed(hidden=packed(np.zeros((BATCH, SEQ, 9), np.float32))),
        ("[batch, seq, 8]", "[3, 7, 9]"), "tensors.hidden", "wrong_shape",
    ),
    "two lengths": (
        changed(ids=packed(np.zeros((BATCH, 5), np.int64))),
        ("axis seq has size 5", "tensors.hidden", "7"), "tensors.ids", "wrong_shape",
    ),
    "short data": (
        changed(mask={"dtype": "bool", "shape": [BATCH, SEQ], "data": "AQE="}), ("21 bytes", "got 2"), "tensors.mask",
        "wrong_shape",
    ),
    "a bool of 2": (
        changed(mask={"dtype": "bool", "shape": [1, 1], "data": "Ag=="}), ("0 or 1",), "tensors.mask", "invalid_value"
    ),
    "not base64": (
        changed(mask={"dtype": "bool", "shape": [1, 1], "data": "?"}), ("not base64",), "tensors.mask", "invalid_value"
    ),
    **{
        f"a size of {size!r}": (
            changed(mask={"dtype": "bool", "shape": [3, size], "data": ""}),
            (f"shape[1]: an integer from 1 is expected, got {told}",), "tensors.mask", "invalid_value",
        )
        for size, told in ((-1, "-1"), (2.0, "a number"), (True, "a boolean"), ("7", "a string"), (None, "null"))
    },
    "a size for each of too many axes": (
        changed(mask={"dtype": "bool", "shape": [1] * 9, "data": ""}), ("at most 8 sizes is expected, got 9 of them",),
        "tensors.mask", "invalid_value",
    ),
    **{
        f"{name} beside {data!r}": (
            changed(hidden={"dtype": "float32", "shape": shape, "data": data}), ("]: sizes from 1", told),
            "tensors.hidden", "wrong_shape",
        )
        for name, shape, told in (
            ("no position", [1, 0, DIM], "got 0"),
            ("none of very many", [0, 2**62, DIM], "got 0"),
            ("very many", [1, 2**40, DIM], f"got {2**40}"),
        )
        for data in NO_DATA
    },
    "other fields": (changed(mask={"dtype": "bool", "values": []}), ("dtype, shape, data",), "tensors.mask",
                     "invalid_value"),
    "an id too high": (
        changed(ids=packed(np.full((BATCH, SEQ), VOCAB))), (f"0 to {VOCAB - 1}", f"got {VOCAB} at [0, 0]"),
        "tensors.ids", "invalid_value",
    ),
    "infinity": (
        changed(hidden=packed(np.full((BATCH, SEQ, DIM), np.inf, np.float32))), ("finite", "inf at [0, 0, 0]"),
        "tensors.hidden", "invalid_value",
    ),
    "too large for the type": (
        changed(hidden=np.full((BATCH, SEQ, DIM), 1e39).tolist()), ("finite",), "tensors.hidden", "invalid_value"
    ),
    "an integer without end": (changed(ids=[[10**30]]), ("does not fit",), "tensors.ids", "invalid_value"),
    "nothing": (changed(hidden=[[]]), ("[batch, seq, 8]", "[1, 0]"), "tensors.hidden", "wrong_shape"),
    "too many axes": (changed(hidden=[[[[[[[[[[1.0]]]]]]]]]]), ("8 axes",), "tensors.hidden", "invalid_value"),
    "too long": (
        body_of(make_inputs(1, MAX_SEQ + 1)), (f"1 to {MAX_SEQ}", f"got {MAX_SEQ + 1}"), "tensors.hidden",
        "context_length_exceeded",
    ),
    "text beside it": (changed() | {"input": "a"}, ("tensors",), "input", "invalid_value"),
    "a cut": (changed() | {"truncate": "left"}, ("no meaning",), "truncate", "invalid_value"),
    "vectors": (changed() | {"include": ["embedding"]}, ('"outputs"', "embedding"), "include", "invalid_value"),
    "no such layer": (
        changed() | {"include": ["attention"], "attention": {"layers": [1]}}, ("0…0", "got 1"), "attention.layers",
        "invalid_value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_names_the_tensor(tensors: httpx2.AsyncClient, name: str) -> None:
    body, words, param, code = FAULTS[name]
    await refused(tensors, body, *words, param=param, code=code)


@pytest.mark.parametrize("shape", ["[0,4611686018427387904,8]", f"[1,{10**40},8]", f"[1,0,{10**40}]"])
async def test_a_size_without_end_is_refused(tensors: httpx2.AsyncClient, shape: str) -> None:
    for data in ('""', "[]"):
        body = f'{{"tensors":{{"hidden":{{"dtype":"float32","shape":{shape},"data":{data}}}}}}}'
        answer = await tensors.post(URL, content=body.encode(), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tensors.hidden")


async def test_each_kind_of_model_says_what_it_takes(tensors: httpx2.AsyncClient, client: httpx2.AsyncClient) -> None:
    body: dict[str, Any] = {"input": "the cat"}
    bodies = dict.fromkeys((URL, "/v1/embeddings", "/v1/tokenize", "/v1/classify"), body)
    for path, body in (bodies | {"/v1/rerank": {"query": "a", "documents": ["b"]}}).items():
        answer = await tensors.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "unsupported")
        assert "takes tensors" in error["message"]
    await refused(client, changed(), "takes text", param="tensors", code="unsupported")


async def test_weights_of_a_half_precision_bundle_are_float32(tmp_path: Path) -> None:
    bundle = make_cross_bundle(tmp_path / "half", weights_dtype="float16")
    inputs = make_cross_inputs(1, 3, 5)
    body = body_of(inputs, include=["attention"], encoding_format="base64")
    expected = cross_reference(inputs)["weights"]
    async with serving(bundle.path) as client:
        for options in ({}, {"heads": [0]}, {"heads": "mean"}, {"expand": True}):
            answer = await client.post(URL, json=body | {"attention": options})
            (layer,) = answer.json()["data"][0]["attention"]
            weights = np.frombuffer(base64.b64decode(layer["weights"]), "<f4").reshape(layer["shape"])
            np.testing.assert_allclose(weights, expected, atol=1e-3)


async def test_fifty_requests_at_once_on_two_axes_equal_their_single_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    shapes = [tuple(int(rng.integers(1, end)) for end in (4, 20, 30)) for _ in range(50)]
    requests = [make_cross_inputs(*shape, seed=index) for index, shape in enumerate(shapes)]

    async def ask(client: httpx2.AsyncClient, index: int) -> dict[str, Array]:
        inputs = requests[index]
        tensors = {name: packed(values) if index % 2 else values.tolist() for name, values in inputs.items()}
        body = {"tensors": tensors, "include": ["outputs", "attention"], "attention": {"expand": index % 3 == 0}}
        answer = await client.post(URL, json=body, headers={"accept": "application/vnd.safetensors"})
        assert answer.status_code == 200, answer.text
        return load(answer.content)

    async with serving(make_cross_bundle(tmp_path / "cross").path) as client:
        alone = [await ask(client, index) for index in range(50)]
        together = await asyncio.gather(*(ask(client, index) for index in range(50)))
    for inputs, one, other in zip(requests, alone, together, strict=True):
        expected = cross_reference(inputs)
        assert set(one) == set(other)
        for name, values in other.items():
            row, _, kind = name.partition(".")
            wanted = expected["weights"][int(row)][None] if kind == "attention.0" else None
            wanted = expected[kind.removeprefix("outputs.")][int(row)] if wanted is None else wanted
            np.testing.assert_allclose(values, one[name], atol=1e-5)
            np.testing.assert_allclose(values, wanted, atol=1e-5)


async def test_the_space_of_vectors_is_refused_in_the_header_as_in_the_body(tensors: httpx2.AsyncClient) -> None:
    body = body_of(make_inputs(1, 3))
    by_field = await tensors.post(URL, json={**body, "embedding_space": "x"})
    by_header = await tensors.post(URL, json=body, headers={"embedding-space": "x"})
    assert (by_header.status_code, by_header.json()["error"]["param"]) == (400, "embedding_space")
    assert by_header.json()["error"]["message"] == by_field.json()["error"]["message"]


async def test_a_row_of_which_a_mask_keeps_nothing_is_refused_where_the_bundle_says_so(tmp_path: Path) -> None:
    bundle = make_cross_bundle(tmp_path / "cross")
    inputs = make_cross_inputs(2, 3, 5)
    inputs["mask"][1] = False
    async with serving(bundle.path) as client:
        await refused(client, body_of(inputs), "row [1] keeps none", param="tensors.mask", code="empty_row")
