"""Unmodified client libraries get what they expect, and our words when they ask for what cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.fixtures.live import LiveServer

MODEL = "all-MiniLM-L6-v2"


@pytest.fixture
def client(minilm_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{minilm_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_default_call_decodes_to_the_float_answer(client: openai.OpenAI) -> None:
    default = client.embeddings.create(model=MODEL, input="héllo 😀")
    floats = client.embeddings.create(model=MODEL, input="héllo 😀", encoding_format="float")
    assert len(default.data[0].embedding) == 384
    np.testing.assert_allclose(default.data[0].embedding, floats.data[0].embedding, atol=1e-7)
    assert default.usage.prompt_tokens == floats.usage.total_tokens == 4
    assert default.model == MODEL


def test_openai_options_and_errors(client: openai.OpenAI) -> None:
    full = np.array(client.embeddings.create(model=MODEL, input="a").data[0].embedding)
    for dimensions in (1, 8, 384):
        short = np.array(client.embeddings.create(model=MODEL, input="a", dimensions=dimensions).data[0].embedding)
        assert np.linalg.norm(short) == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(short, full[:dimensions] / np.linalg.norm(full[:dimensions]), atol=1e-5)
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="gpt-9", input="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input="dog " * 600)
    assert isinstance(refused.value.body, dict)
    assert "256 tokens allowed, got 602" in refused.value.body["message"]
    assert refused.value.code == "context_length_exceeded"


def test_openai_client_reaches_attention_through_its_extra_body(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(
        model=MODEL,
        input="a cat",
        extra_body={"include": ["embedding", "attention"], "attention": {"layers": "last", "heads": "mean"}},
    )
    extra = answer.data[0].model_extra or {}
    layer = extra["attention"][0]
    assert layer["shape"] == [1, 4, 4]


def test_langchain_with_text_works(minilm_server: LiveServer) -> None:
    options = {"model": MODEL, "base_url": f"{minilm_server.url}/v1", "api_key": SecretStr("none"), "max_retries": 0}
    with httpx2.Client() as http:
        good = OpenAIEmbeddings(**options, check_embedding_ctx_length=False, http_client=http)
        vectors = good.embed_documents(["a cat", "", "a dog"])
        assert [len(vector) for vector in vectors] == [384] * 3
        np.testing.assert_allclose(good.embed_query("a cat"), vectors[0], atol=1e-5)


def test_another_tokenizers_ids_are_refused_with_the_hint(minilm_server: LiveServer) -> None:
    # What LangChain posts by default: cl100k ids of "a cat is on the".
    body = {"input": [[64, 8415, 374, 389, 279]], "model": MODEL, "encoding_format": "base64"}
    answer = minilm_server.post("/v1/embeddings", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "foreign_token_ids"
    assert "check_embedding_ctx_length=False" in answer.json()["error"]["message"]


def test_nulls_and_unknown_fields_of_other_clients_are_taken(minilm_server: LiveServer) -> None:
    body = {"input": "a", "model": MODEL, "encoding_format": None, "dimensions": None, "user": None}
    answer = minilm_server.post("/v1/embeddings", body | {"input_type": "query", "foo": {"x": 1}})
    assert answer.status_code == 200
    assert isinstance(answer.json()["data"][0]["embedding"], list)


def test_token_ids_are_one_input_and_used_verbatim(minilm_server: LiveServer) -> None:
    text = "a cat is on the river bank"
    tokens = minilm_server.post("/v1/tokenize", {"input": text}).json()["data"][0]["tokens"]
    ids = [token["id"] for token in tokens]
    by_text = minilm_server.post("/v1/embeddings", {"input": text}).json()
    flat = minilm_server.post("/v1/embeddings", {"input": ids}).json()
    nested = minilm_server.post("/v1/embeddings", {"input": [ids, [101, 4937, 102]]}).json()
    assert flat["usage"]["prompt_tokens"] == len(ids)
    assert [len(flat["data"]), len(nested["data"])] == [1, 2]
    for answer in (flat, nested):
        difference = np.subtract(answer["data"][0]["embedding"], by_text["data"][0]["embedding"])
        assert np.abs(difference).max() <= 1e-5


def test_lone_surrogates_in_the_bytes_equal_the_replacement_character(minilm_server: LiveServer) -> None:
    def post(body: bytes) -> httpx2.Response:
        headers = {"Content-Type": "application/json"}
        return httpx2.post(f"{minilm_server.url}/v1/embeddings", content=body, headers=headers, timeout=30)

    lone, pair = post(rb'{"input":["ok","lone \ud83d surrogate"]}'), post(rb'{"input":"\ud83d\ude00"}')
    replaced = minilm_server.post("/v1/embeddings", {"input": ["ok", "lone \ufffd surrogate"]})
    emoji = minilm_server.post("/v1/embeddings", {"input": "😀"})
    for answer, expected in ((lone, replaced), (pair, emoji)):
        assert answer.status_code == 200, answer.text
        for one, other in zip(answer.json()["data"], expected.json()["data"], strict=True):
            assert np.abs(np.subtract(one["embedding"], other["embedding"])).max() <= 1e-5
