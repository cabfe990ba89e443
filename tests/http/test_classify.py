"""`POST /v1/classify`: classes with their scores, the best first, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx2
import numpy as np
import pytest

from service.api.schema import ClassifyAnswer
from service.engine.scores import activate
from service.manifest import Activation, HeadSpec
from tests.fixtures.fakes import fake_manifest, fake_tokenizer, task_outputs
from tests.http.conftest import OpenClient
from tests.http.test_bodies import check_error, post_raw

ROUTE = "/v1/classify"
LABELS = ("bad", "fair", "good")


def logits_of(*texts: str | tuple[str, str]) -> Any:
    """What the fake model gives for each, alone."""
    outputs = task_outputs(fake_manifest(task="sequence_classification"))
    rows = []
    for text in texts:
        found = fake_tokenizer().encode(*([text] if isinstance(text, str) else text))
        ids = np.array([found.ids])
        rows.append(outputs({"input_ids": ids, "attention_mask": np.ones_like(ids)}, "logits")[0])
    return np.array(rows)


def scores_of(answer: httpx2.Response) -> Any:
    """By label, in the order of the labels."""
    assert answer.status_code == 200, answer.text
    rows = [{item["label"]: item["score"] for item in row["scores"]} for row in answer.json()["data"]]
    return np.array([[row[label] for label in LABELS] for row in rows])


@pytest.fixture
async def client(open_client: OpenClient) -> httpx2.AsyncClient:
    return await open_client(task="sequence_classification")


async def test_every_input_has_its_classes_the_best_first(client: httpx2.AsyncClient) -> None:
    texts = ["the cat", "", "dog dog river", "the cat"]
    answer = await client.post(ROUTE, json={"input": texts, "model": "fake"})
    found = ClassifyAnswer.model_validate_json(answer.content, strict=False)
    assert [item.index for item in found.data] == [0, 1, 2, 3]
    assert [item.num_tokens for item in found.data] == [4, 2, 5, 4]
    assert found.usage.total_tokens == found.usage.prompt_tokens == 15
    for item in found.data:
        scores = [score.score for score in item.scores]
        assert scores == sorted(scores, reverse=True)
        assert {score.label for score in item.scores} == set(LABELS)
    np.testing.assert_allclose(scores_of(answer), activate(logits_of(*texts), "softmax"), atol=1e-7)
    assert found.data[0].scores == found.data[3].scores
    assert "embedding-space" not in answer.headers
    single = await client.post(ROUTE, json={"input": "the cat"})
    assert single.json()["data"][0] == answer.json()["data"][0]


async def test_pairs_and_token_ids_are_inputs_too(client: httpx2.AsyncClient) -> None:
    body = {"input": [["the cat", "a dog"], [2, 30, 3], "cat"], "raw_scores": True}
    answer = await client.post(ROUTE, json=body)
    assert [item["num_tokens"] for item in answer.json()["data"]] == [7, 3, 3]
    np.testing.assert_array_equal(scores_of(answer)[[0, 2]], logits_of(("the cat", "a dog"), "cat"))


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "identity"])
async def test_scores_are_what_the_head_says_and_raw_ones_are_logits(
    open_client: OpenClient, activation: Activation
) -> None:
    head = HeadSpec(labels=LABELS, problem="multi_label", activation=activation)
    client = await open_client(task="sequence_classification", head=head)
    texts = ["the cat", "a dog on a river"]
    scores = scores_of(await client.post(ROUTE, json={"input": texts}))
    np.testing.assert_allclose(scores, activate(logits_of(*texts), activation), atol=1e-7)
    raw = scores_of(await client.post(ROUTE, json={"input": texts, "raw_scores": True}))
    np.testing.assert_array_equal(raw, logits_of(*texts))


async def test_only_the_best_come_when_so_many_are_asked_for(client: httpx2.AsyncClient) -> None:
    full = (await client.post(ROUTE, json={"input": "the cat"})).json()["data"][0]["scores"]
    for count, expected in ((1, full[:1]), (2, full[:2]), (3, full), (9, full), (None, full)):
        answer = await client.post(ROUTE, json={"input": "the cat", "top_k": count})
        assert answer.json()["data"][0]["scores"] == expected


async def test_a_regression_has_one_number(open_client: OpenClient) -> None:
    head = HeadSpec(labels=("LABEL_0",), problem="regression", activation="identity")
    client = await open_client(task="sequence_classification", head=head)
    scores = (await client.post(ROUTE, json={"input": "dog dog"})).json()["data"][0]["scores"]
    assert [score["label"] for score in scores] == ["LABEL_0"]
    assert isinstance(scores[0]["score"], float)


async def test_a_long_text_is_refused_or_cut_on_the_side_that_was_named(client: httpx2.AsyncClient) -> None:
    text = "cat " * 80 + "river " * 80
    for refuse in (None, False, "error"):
        answer = await client.post(ROUTE, json={"input": ["a", text], "truncate": refuse})
        message = check_error(answer, 400, param="input[1]", code="context_length_exceeded")
        assert "64 tokens allowed, got 162" in message
    for cut, kept in ((True, "cat "), ("right", "cat "), ("left", "river ")):
        answer = await client.post(ROUTE, json={"input": text, "truncate": cut, "raw_scores": True})
        item = answer.json()["data"][0]
        assert (item["num_tokens"], item["truncated"]) == (162, True)
        np.testing.assert_array_equal(scores_of(answer), logits_of(kept * 62))
    pair = await client.post(
        ROUTE, json={"input": [["cat " * 80, "river " * 10]], "truncate": True, "raw_scores": True}
    )
    np.testing.assert_array_equal(scores_of(pair), logits_of(("cat " * 51, "river " * 10)))


async def test_half_a_surrogate_is_the_replacement_character(client: httpx2.AsyncClient) -> None:
    lone = await post_raw(client, ROUTE, rb'{"input":["ok","lone \ud83d surrogate",["the \ude00","\ud83d\ude00"]]}')
    whole = await client.post(ROUTE, json={"input": ["ok", "lone \ufffd surrogate", ["the \ufffd", "\U0001f600"]]})
    assert lone.status_code == 200
    assert lone.json()["data"] == whole.json()["data"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [["a", "b", "c"]]}, "input[0]"),
        ({"input": ["a", {"text": "b"}]}, "input[1]"),
        ({"input": "a", "top_k": 0}, "top_k"),
        ({"input": "a", "top_k": True}, "top_k"),
        ({"input": "a", "raw_scores": 1}, "raw_scores"),
        ({"input": "a", "raw_score": True}, "raw_score"),
        ({"inputs": "a"}, "input"),
    ],
)
async def test_bad_requests_name_their_field(client: httpx2.AsyncClient, body: dict[str, Any], param: str) -> None:
    check_error(await client.post(ROUTE, json=body), 400, param=param)


async def test_an_answer_over_the_limit_is_refused_before_it_is_computed(open_client: OpenClient) -> None:
    client = await open_client(task="sequence_classification", max_response_bytes=2048)
    message = check_error(
        await client.post(ROUTE, json={"input": ["a"] * 20}), 400, param="input", code="output_too_large"
    )
    assert "2048 bytes allowed" in message
    assert (await client.post(ROUTE, json={"input": ["a"] * 8, "top_k": 1})).status_code == 200
