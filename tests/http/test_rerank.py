"""`POST /v1/rerank`: documents in their order, in the shape that Jina's and Cohere's clients read, and its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import numpy as np
import pytest

from service.api.schema import RerankAnswer
from service.engine.scores import activate
from service.manifest import HeadSpec
from service.runners.base import Array, FakeRunner
from tests.fixtures.fakes import fake_manifest, task_outputs
from tests.http.conftest import OpenClient
from tests.http.test_bodies import check_error, post_raw

ROUTE = "/v1/rerank"
SCORER = HeadSpec(labels=("LABEL_0",), problem="single_label", activation="sigmoid")
DOCUMENTS = ["a dog", "the cat is on a river bank", "", "the cat", "music"]


async def open_scorer(open_client: OpenClient, runner: FakeRunner | None = None, **settings: Any) -> httpx2.AsyncClient:
    return await open_client(runner, task="sequence_classification", head=SCORER, **settings)


@pytest.fixture
async def client(open_client: OpenClient) -> httpx2.AsyncClient:
    return await open_scorer(open_client)


async def logits_of(client: httpx2.AsyncClient, query: str, documents: list[str]) -> Any:
    """From the route that knows of no order, a pair at a time."""
    found = []
    for document in documents:
        body = {"input": [[query, document]], "raw_scores": True}
        answer = await client.post("/v1/classify", json=body)
        found.append(answer.json()["data"][0]["scores"][0]["score"])
    return np.array(found, dtype=np.float32)


async def results_of(client: httpx2.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    answer = await client.post(ROUTE, json=body)
    assert answer.status_code == 200, answer.text
    RerankAnswer.model_validate_json(answer.content, strict=False)
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


async def test_documents_come_in_the_order_of_their_scores(client: httpx2.AsyncClient) -> None:
    logits = await logits_of(client, "cat", DOCUMENTS)
    assert len(set(logits.tolist())) > 2
    results = await results_of(client, query="cat", documents=DOCUMENTS)
    assert [result["index"] for result in results] == sorted(range(5), key=lambda index: (-logits[index], index))
    for result in results:
        assert result["relevance_score"] == pytest.approx(activate(logits[result["index"]], "sigmoid"), abs=1e-7)
        assert "document" not in result
    raw = await results_of(client, query="cat", documents=DOCUMENTS, raw_scores=True)
    assert [result["relevance_score"] for result in raw] == [logits[result["index"]] for result in results]
    answer = (await client.post(ROUTE, json={"query": "cat", "documents": DOCUMENTS, "model": "fake"})).json()
    assert answer["model"] == "fake"
    assert answer["usage"]["total_tokens"] == sum(result["num_tokens"] for result in results)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "fake", "query": "cat", "documents": DOCUMENTS, "top_n": 2},
        {"model": "fake", "query": "cat", "documents": [{"text": text} for text in DOCUMENTS], "top_n": 2},
        {"model": "fake", "query": "cat", "documents": ["a dog", *({"text": text, "id": 7} for text in DOCUMENTS[1:])],
         "top_n": 2, "rank_fields": ["text"], "max_chunks_per_doc": 10},
        {"query": "cat", "documents": DOCUMENTS, "top_n": 2, "return_documents": None, "raw_scores": None,
         "truncate": None, "model": None, "user": "u", "rank_fields": None},
    ],
)  # fmt: skip
async def test_bodies_of_clients_are_taken(client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    expected = (await results_of(client, query="cat", documents=DOCUMENTS))[:2]
    assert await results_of(client, **body) == expected
    with_texts = await results_of(client, **body, **({} if "return_documents" in body else {"return_documents": True}))
    for result in with_texts:
        if "return_documents" not in body:
            assert result["document"] == {"text": DOCUMENTS[result["index"]]}


async def test_as_many_come_as_there_are(client: httpx2.AsyncClient) -> None:
    full = await results_of(client, query="cat", documents=DOCUMENTS)
    for count in (5, 6, 1000, None):
        assert await results_of(client, query="cat", documents=DOCUMENTS, top_n=count) == full


async def test_equal_documents_are_equal_and_stay_in_order_whatever_else_is_computed(open_client: OpenClient) -> None:
    outputs = task_outputs(fake_manifest(task="sequence_classification", head=SCORER))

    def unsteady(inputs: Mapping[str, Array], name: str) -> Array:
        """As real kernels are: the last bits depend on the place in the batch."""
        found = outputs(inputs, name)
        noise = np.linspace(0, 1e-6, len(found), dtype=np.float32)[:, None]
        return found + noise

    client = await open_scorer(open_client, FakeRunner(outputs=unsteady))
    documents = ["the cat", "a dog", "the cat", "a dog", "the cat"] * 20
    results = await results_of(client, query="river", documents=documents)
    for text in ("the cat", "a dog"):
        same = [result for result in results if documents[result["index"]] == text]
        assert len({result["relevance_score"] for result in same}) == 1
        assert [result["index"] for result in same] == [i for i, document in enumerate(documents) if document == text]


async def test_scores_that_the_activation_presses_together_keep_their_order(open_client: OpenClient) -> None:
    def large(inputs: Mapping[str, Array], name: str) -> Array:
        logits: Array = 100 + inputs["attention_mask"].sum(axis=1, keepdims=True)
        return logits.astype(np.float32)

    client = await open_scorer(open_client, FakeRunner(outputs=large))
    results = await results_of(client, query="cat", documents=["a", "a a", "a a a"])
    assert [result["index"] for result in results] == [2, 1, 0]
    assert [result["relevance_score"] for result in results] == [1.0, 1.0, 1.0]


async def test_a_long_document_is_refused_or_cut_on_the_side_that_was_named(client: httpx2.AsyncClient) -> None:
    documents = ["dog", "cat " * 80 + "river " * 80]
    for refuse in (None, False, "error"):
        answer = await client.post(ROUTE, json={"query": "cat", "documents": documents, "truncate": refuse})
        message = check_error(answer, 400, param="documents[1]", code="context_length_exceeded")
        assert "64 tokens allowed, got 164" in message
    cuts = ((True, ["dog", "cat " * 60]), ("right", ["dog", "cat " * 60]), ("left", ["dog", "river " * 60]))
    for cut, kept in cuts:
        results = await results_of(client, query="cat", documents=documents, truncate=cut, raw_scores=True)
        logits = await logits_of(client, "cat", kept)
        for result in results:
            assert result["relevance_score"] == logits[result["index"]]
            assert (result["num_tokens"], result["truncated"]) == ((5, False) if not result["index"] else (164, True))


async def test_half_a_surrogate_is_the_replacement_character(client: httpx2.AsyncClient) -> None:
    documents = rb'["ok","lone \ud83d surrogate",{"text":"\ud83d\ude00"}]'
    raw = rb'{"query":"\ud83d cat","documents":%b,"return_documents":true}' % documents
    lone = await post_raw(client, ROUTE, raw)
    body = {"query": "\ufffd cat", "documents": ["ok", "lone \ufffd surrogate", "\U0001f600"], "return_documents": True}
    assert lone.status_code == 200
    assert lone.json()["results"] == await results_of(client, **body)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ["cat"]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a text"}, "documents"),
        ({"documents": None}, "documents"),
        ({"documents": ["a", 7]}, "documents[1]"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1]"),
        ({"documents": [{"text": None}]}, "documents[0]"),
        ({"documents": [["a", "b"]]}, "documents[0]"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "2"}, "top_n"),
        ({"rank_fields": ["title"]}, "rank_fields[0]"),
        ({"rank_fields": "text"}, "rank_fields"),
        ({"max_chunks_per_doc": "x"}, "max_chunks_per_doc"),
        ({"return_document": True}, "return_document"),
        ({"model": "other"}, "model"),
    ],
)
async def test_bad_requests_name_their_field(client: httpx2.AsyncClient, changes: dict[str, Any], param: str) -> None:
    answer = await client.post(ROUTE, json={"query": "cat", "documents": ["a", "b"]} | changes)
    check_error(answer, 404 if param == "model" else 400, param=param)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rank_fields": ["title"]},
            'rank_fields[0]: "text", the only field that is ranked, is expected, got another string',
        ),
        ({"rank_fields": 1}, 'rank_fields: a list of "text", the only field that is ranked, is expected, got 1'),
        ({"max_chunks_per_doc": "x"}, "max_chunks_per_doc: an integer is expected, got a string"),
    ],
)
async def test_fields_of_other_clients_are_told_as_what_they_are(
    client: httpx2.AsyncClient, changes: dict[str, Any], message: str
) -> None:
    answer = await client.post(ROUTE, json={"query": "cat", "documents": ["a"]} | changes)
    assert message in check_error(answer, 400)


async def test_limits_name_what_is_too_much(open_client: OpenClient) -> None:
    client = await open_scorer(open_client, max_items=3, max_text_chars=400, max_body_bytes=1024)
    documents = {"documents": ["a"] * 4}
    assert "3 documents allowed, got 4" in check_error(
        await client.post(ROUTE, json={"query": "a", **documents}), 400, param="documents", code="too_many_items"
    )
    check_error(await client.post(ROUTE, json={"query": "a" * 401, "documents": ["a"]}), 400, param="query")
    check_error(await client.post(ROUTE, json={"query": "a", "documents": ["b", "a" * 401]}), 400, param="documents[1]")
    message = check_error(
        await client.post(ROUTE, json={"query": "a " * 180, "documents": ["a"] * 3, "truncate": True}),
        400,
        param="query",
    )
    assert "1024 characters allowed" in message
    assert "got 1083" in message


async def test_an_answer_over_the_limit_is_refused(open_client: OpenClient) -> None:
    client = await open_scorer(open_client, max_response_bytes=2048)
    body = {"query": "a", "documents": ["cat " * 30] * 4}
    assert (await client.post(ROUTE, json=body)).status_code == 200
    check_error(
        await client.post(ROUTE, json=body | {"return_documents": True}),
        400,
        param="documents",
        code="output_too_large",
    )


async def test_many_at_once_get_what_one_gets(client: httpx2.AsyncClient) -> None:
    queries = ["cat", "dog", "river bank", ""] * 8
    expected = {query: await results_of(client, query=query, documents=DOCUMENTS) for query in set(queries)}
    others = [client.post("/v1/classify", json={"input": ["the cat"] * 3}) for _ in queries]
    found, *_ = await asyncio.gather(
        asyncio.gather(*(results_of(client, query=query, documents=DOCUMENTS) for query in queries)), *others
    )
    for query, results in zip(queries, found, strict=True):
        assert results == expected[query]
