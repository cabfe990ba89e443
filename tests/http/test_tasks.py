"""Models of every task over every route: what comes when nothing is asked for, in every format, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import httpx2
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from service.api.oip_schema import OipAnswer, OipModel
from service.api.schema import EncodeAnswer, ModelDetail
from service.engine.scores import activate
from service.manifest import HeadSpec, Task
from tests.fixtures.fakes import fake_manifest, fake_tokenizer
from tests.http.conftest import OpenClient
from tests.http.test_bodies import check_error, post_raw
from tests.http.test_oip import body_of, oip_error, output

TEXTS = ["the cat", "a dog on the river"]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "cat"},
    "/v1/classify": {"input": "cat"},
    "/v1/rerank": {"query": "cat", "documents": ["dog"]},
}
SCORER = HeadSpec(labels=("LABEL_0",), problem="single_label", activation="sigmoid")


def floats(data: str) -> Any:
    return np.frombuffer(base64.b64decode(data), dtype="<f4")


async def encode(client: httpx2.AsyncClient, *inputs: Any, **options: Any) -> list[dict[str, Any]]:
    answer = await client.post("/v1/encode", json={"input": list(inputs), **options})
    assert answer.status_code == 200, answer.text
    EncodeAnswer.model_validate_json(answer.content, strict=False)
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


@pytest.mark.parametrize(
    ("task", "head", "works"),
    [
        ("embedding", None, {"/v1/embeddings"}),
        ("sequence_classification", None, {"/v1/classify"}),
        ("sequence_classification", SCORER, {"/v1/classify", "/v1/rerank"}),
        ("token_classification", None, set()),
        ("sparse", None, set()),
        ("late_interaction", None, set()),
    ],
)
async def test_another_tasks_route_says_what_the_model_can_do(
    open_client: OpenClient, task: Task, head: HeadSpec | None, works: set[str]
) -> None:
    client = await open_client(task=task, head=head)
    model = (await client.get("/v1/models")).json()["data"][0]
    assert set(model["routes"]) == {*works, "/v1/encode"}
    for path, body in ROUTES.items():
        answer = await client.post(path, json=body)
        if path in works:
            assert answer.status_code == 200
            continue
        message = check_error(answer, 400, param="model", code="unsupported_task")
        assert task in message
        assert all(route in message for route in model["routes"])
    (item,) = await encode(client, "cat")
    assert set(item) == {"index", "num_tokens", "truncated", model["include"][0]}
    tokens = (await client.post("/v1/tokenize", json={"input": "the cat"})).json()["data"][0]["tokens"]
    assert [token["text"] for token in tokens] == ["[CLS]", "the", "cat", "[SEP]"]


@pytest.mark.parametrize("task", get_args(Task))
async def test_what_a_task_does_not_give_is_refused_by_name(open_client: OpenClient, task: Task) -> None:
    client = await open_client(task=task)
    model = ModelDetail.model_validate_json((await client.get("/v1/models/fake")).content, strict=False)
    assert model.task == task
    assert model.include is not None
    await encode(client, "cat", include=model.include)
    for name in {"embedding", "classes", "entities", "sparse"} - set(model.include):
        answer = await client.post("/v1/encode", json={"input": "cat", "include": [name]})
        message = check_error(answer, 400, param="include", code="unsupported_task")
        assert all(offer in message for offer in model.include)


async def test_models_show_labels_and_what_makes_scores(open_client: OpenClient) -> None:
    client = await open_client(task="sequence_classification")
    model = (await client.get("/v1/models")).json()["data"][0]
    assert model["head"] == {
        "labels": ["bad", "fair", "good"], "problem": "single_label", "activation": "softmax"
    }  # fmt: skip
    assert (model["embedding"], model["embedding_space"]) == (None, None)


async def test_models_show_the_pooling_and_its_source(client: httpx2.AsyncClient) -> None:
    model = (await client.get("/v1/models")).json()["data"][0]
    assert model["embedding"]["pooling"] == ["mean"]
    assert model["embedding"]["pooling_source"] == "default"
    assert model["head"] is None


@pytest.mark.parametrize(
    ("task", "shapes"), [("sequence_classification", [[3], [3]]), ("token_classification", [[4, 5], [7, 5]])]
)
async def test_classes_come_in_every_format(open_client: OpenClient, task: Task, shapes: list[list[int]]) -> None:
    client = await open_client(task=task)
    body = {"input": TEXTS, "include": ["classes", "tokens", "attention"]}
    answer = await client.post("/v1/encode", json=body)
    assert answer.json()["labels"] == list(fake_manifest(task=task).head.labels)  # type: ignore[union-attr]
    plain = answer.json()["data"]
    packed = (await client.post("/v1/encode", json=body | {"encoding_format": "base64"})).json()["data"]
    binary = await client.post("/v1/encode", json=body, headers={"accept": "application/vnd.safetensors"})
    tensors = safetensors.numpy.load(binary.content)
    raw = await encode(client, *TEXTS, include=["classes"], raw_scores=True)
    for index, shape in enumerate(shapes):
        values = np.array(plain[index]["classes"]["data"], dtype=np.float32)
        assert plain[index]["classes"]["shape"] == list(values.shape) == shape
        assert len(plain[index]["tokens"]) == plain[index]["attention"][0]["shape"][1] == plain[index]["num_tokens"]
        np.testing.assert_array_equal(tensors[f"{index}.classes"], values)
        np.testing.assert_array_equal(floats(packed[index]["classes"]["data"]).reshape(shape), values)
        logits = np.array(raw[index]["classes"]["data"], dtype=np.float32)
        np.testing.assert_allclose(activate(logits, "softmax"), values, atol=1e-7)


async def test_entities_are_spans_of_the_text_as_sent(open_client: OpenClient) -> None:
    """The fake model's label of a token is its id's rest by 5: [O, B-PLACE, I-PLACE, B-PET, I-PET]."""
    client = await open_client(task="token_classification")
    text = "\U0001f600 the Cat is on a riverBank"
    labels = ["O", "PLACE", "PLACE", "PET", "PET"]
    found = fake_tokenizer().encode(text)
    expected = [
        (labels[token_id % 5], text[start:end])
        for token_id, (start, end) in zip(found.ids[1:-1], found.offsets[1:-1], strict=True)
        if token_id % 5
    ]
    (item,) = await encode(client, text, aggregation="none", include=["entities", "tokens"])
    assert [(e["label"][2:], e["text"]) for e in item["entities"]] == expected
    for aggregation in ("none", "simple", "first", "average", "max", None):
        (item,) = await encode(client, text, aggregation=aggregation, include=["entities", "tokens"])
        assert item["entities"]
        for entity in item["entities"]:
            assert text[entity["start"] : entity["end"]] == entity["text"] == entity["text"].strip()
            first, behind = entity["tokens"]
            assert item["tokens"][first]["start"] == entity["start"]
            assert item["tokens"][behind - 1]["end"] == entity["end"]
            assert 0.2 < entity["score"] <= 1
            assert "sequence" not in entity
    pair, ids = await encode(client, ["the cat", "the cat"], [2, 31, 32, 3])
    assert {entity["sequence"] for entity in pair["entities"]} <= {0, 1}
    assert [e["text"] for e in pair["entities"] if not e["sequence"]] == [
        e["text"] for e in pair["entities"] if e["sequence"]
    ]
    assert all((entity["start"], entity["text"]) == (None, None) for entity in ids["entities"])
    binary = await client.post(
        "/v1/encode", json={"input": text}, headers={"accept": "application/vnd.safetensors"}
    )  # fmt: skip
    header = json.loads(binary.content[8 : 8 + int.from_bytes(binary.content[:8], "little")])
    (default,) = await encode(client, text)
    assert json.loads(header["__metadata__"]["response"])["data"][0]["entities"] == default["entities"]


async def test_entities_of_a_text_that_was_cut_are_of_what_is_left(open_client: OpenClient) -> None:
    client = await open_client(task="token_classification")
    text = "cat " * 100
    for side, first in (("right", 0), ("left", 4 * 38)):
        (item,) = await encode(client, text, truncate=side, aggregation="none")
        assert (item["num_tokens"], item["truncated"]) == (102, True)
        assert [entity["start"] for entity in item["entities"]] == [first + 4 * index for index in range(62)]
    word = "riverbank "  # not in the vocabulary: several tokens, and one label for all of them
    num_tokens = len(fake_tokenizer().encode(word).ids) - 2
    assert num_tokens > 2
    (item,) = await encode(client, "the " + word * (60 // num_tokens), aggregation="first")
    (cut,) = await encode(client, "the " * 100 + word * (60 // num_tokens), aggregation="first", truncate="left")
    assert cut["truncated"]
    assert [entity["text"] for entity in cut["entities"][-3:]] == [entity["text"] for entity in item["entities"][-3:]]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"raw_scores": True}, "raw_scores"),
        ({"include": ["classes"], "aggregation": "max"}, "aggregation"),
        ({"aggregation": "last"}, "aggregation"),
        ({"aggregation": "max", "input": [[2, 31, 3]]}, "aggregation"),
        ({"dimensions": 2}, "dimensions"),
        ({"normalize": True}, "normalize"),
    ],
)
async def test_options_without_a_meaning_are_refused(
    open_client: OpenClient, options: dict[str, Any], param: str
) -> None:
    client = await open_client(task="token_classification")
    check_error(await client.post("/v1/encode", json={"input": "cat"} | options), 400, param=param)


async def test_sparse_vectors_have_no_zeros_and_rise_by_id(open_client: OpenClient) -> None:
    client = await open_client(task="sparse")
    text = "the cat the dog the"
    found = fake_tokenizer().encode(text).ids
    ids = sorted(set(found))
    (item,) = await encode(client, text)
    assert item["sparse"]["indices"] == ids
    assert item["sparse"]["tokens"] == [fake_tokenizer().id_to_token(token_id) for token_id in ids]
    expected = np.log1p([found.count(token_id) for token_id in ids]).astype(np.float32)
    np.testing.assert_array_equal(np.array(item["sparse"]["values"], dtype=np.float32), expected)
    (packed,) = await encode(client, text, encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed["sparse"]["indices"]), dtype="<i4").tolist() == ids
    np.testing.assert_array_equal(floats(packed["sparse"]["values"]), expected)
    binary = await client.post(
        "/v1/encode", json={"input": [text, "cat"]}, headers={"accept": "application/vnd.safetensors"}
    )
    tensors = safetensors.numpy.load(binary.content)
    assert set(tensors) == {f"{index}.sparse.{name}" for index in (0, 1) for name in ("indices", "values")}
    assert tensors["0.sparse.indices"].dtype == np.int32
    assert tensors["0.sparse.indices"].tolist() == ids
    np.testing.assert_array_equal(tensors["0.sparse.values"], expected)


async def test_sparse_vectors_over_the_limit_are_refused_with_what_they_would_take(open_client: OpenClient) -> None:
    client = await open_client(task="sparse", max_response_bytes=2048)
    body = {"input": ["the cat is on a river bank"] * 4}
    assert (await client.post("/v1/encode", json=body)).status_code == 200
    message = check_error(
        await client.post("/v1/encode", json={"input": body["input"] * 3}), 400, code="output_too_large"
    )
    assert "2048 bytes allowed" in message


async def test_vectors_of_tokens_have_length_1_where_they_are_compared(open_client: OpenClient) -> None:
    client = await open_client(task="late_interaction")
    (item,) = await encode(client, "the cat")
    vectors = np.array(item["outputs"]["data"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    (raw,) = await encode(client, "the cat", normalize=False)
    plain = np.array(raw["outputs"]["data"])
    np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), vectors, atol=1e-6)
    assert np.linalg.norm(plain, axis=1).min() > 2


async def test_half_a_surrogate_does_no_harm(open_client: OpenClient) -> None:
    client = await open_client(task="token_classification")
    answer = await post_raw(client, "/v1/encode", rb'{"input":"cat \ud83d dog","include":["entities","classes"]}')
    assert answer.status_code == 200
    whole = await encode(client, "cat \ufffd dog", include=["entities", "classes"])
    assert answer.json()["data"] == whole


OUTPUTS: dict[Task, dict[str, list[int]]] = {
    "embedding": {"embedding": [2, 4]},
    "sequence_classification": {"scores": [2, 3], "logits": [2, 3]},
    "token_classification": {"scores": [2, 7, 5], "logits": [2, 7, 5]},
    "sparse": {"sparse": [2, len(fake_tokenizer().get_vocab())]},
    "late_interaction": {"outputs": [2, 7, 4]},
}


@pytest.mark.parametrize("task", get_args(Task))
async def test_the_inference_protocol_has_outputs_by_task(open_client: OpenClient, task: Task) -> None:
    client = await open_client(task=task)
    model = OipModel.model_validate((await client.get("/v2/models/fake")).json())
    assert [port.name for port in model.outputs] == [*OUTPUTS[task], "num_tokens"]
    answer = await client.post("/v2/models/fake/infer", json=body_of(TEXTS))
    OipAnswer.model_validate(answer.json())
    assert output(answer, "num_tokens")["data"] == [4, 7]
    include = (await client.get("/v1/models")).json()["data"][0]["include"]
    name = "classes" if "classes" in include else include[0]
    for port in model.outputs[:-1]:
        found = output(answer, port.name)
        assert found["shape"] == OUTPUTS[task][port.name]
        assert port.shape == [-1, *(size if size != 7 else -1 for size in found["shape"][1:])]
        values = np.array(found["data"], dtype=np.float32).reshape(found["shape"])
        options = {"raw_scores": True} if port.name == "logits" else {}
        for row, item in zip(values, await encode(client, *TEXTS, include=[name], **options), strict=True):
            native = item[name]
            if name == "sparse":
                assert np.flatnonzero(row).tolist() == native["indices"]
                np.testing.assert_array_equal(row[native["indices"]], np.array(native["values"], dtype=np.float32))
                continue
            expected = np.array(native["data"] if isinstance(native, dict) else native, dtype=np.float32)
            if row.ndim == 2:
                assert not row[len(expected) :].any()
                row = row[: len(expected)]
            np.testing.assert_allclose(row, expected, atol=1e-7)


async def test_the_inference_protocol_takes_pairs_for_classifiers(open_client: OpenClient) -> None:
    client = await open_client(task="sequence_classification", head=SCORER)

    def body(pairs: list[str]) -> dict[str, Any]:
        tensor = {"name": "pair", "shape": [len(pairs)], "datatype": "BYTES", "data": pairs}
        return {"inputs": [*body_of(["cat", "dog"])["inputs"], tensor], "outputs": [{"name": "scores"}]}

    answer = await client.post("/v2/models/fake/infer", json=body(["a river", "a bank"]))
    ranked = await client.post("/v1/classify", json={"input": [["cat", "a river"], ["dog", "a bank"]]})
    expected = [item["scores"][0]["score"] for item in ranked.json()["data"]]
    assert output(answer, "scores")["data"] == expected
    message = oip_error(await client.post("/v2/models/fake/infer", json=body(["a river"])), 400)
    assert "inputs.pair: as many as there are of `text`, 2, needed, got 1" in message


async def test_arrays_of_the_inference_protocol_are_counted_with_their_padding(open_client: OpenClient) -> None:
    client = await open_client(task="late_interaction", max_response_bytes=16_000)
    texts = ["cat " * 60, *["cat"] * 5]
    assert (await client.post("/v1/encode", json={"input": texts})).status_code == 200
    message = oip_error(await client.post("/v2/models/fake/infer", json=body_of(texts)), 400)
    assert "16000 bytes allowed, this one would take about 18600" in message
