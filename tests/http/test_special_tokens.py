"""The names of special tokens in a caller's text: special as in transformers, or text like any other."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from service.engine.tokenizer import TextTokenizer
from service.errors import StartupError
from service.manifest import TOKENIZER, TextSpec
from tests.fixtures.fakes import fake_bundle, fake_manifest, fake_tokenizer
from tests.fixtures.texts import CLS, SEP
from tests.http.conftest import OpenClient
from tests.http.test_rerank import SCORER

TEXT = "hello [SEP] world [CLS]"


async def ids_of(client: httpx2.AsyncClient, value: object) -> list[int]:
    answer = await client.post("/v1/tokenize", json={"input": [value]})
    return [token["id"] for token in answer.json()["data"][0]["tokens"]]


async def test_they_are_special_unless_the_server_reads_them_as_text(open_client: OpenClient) -> None:
    client = await open_client()
    found = await ids_of(client, TEXT)
    assert found == fake_tokenizer().encode(TEXT).ids
    assert (found.count(CLS), found.count(SEP)) == (2, 2)
    assert (await client.get("/v1/models")).json()["data"][0]["limits"]["special_tokens"] == "special"


async def test_as_text_only_the_template_gives_them(open_client: OpenClient) -> None:
    client = await open_client(task="sequence_classification", head=SCORER, special_tokens="text")
    found = await ids_of(client, TEXT)
    assert (found[0], found[-1], found.count(CLS), found.count(SEP)) == (CLS, SEP, 1, 1)
    assert await ids_of(client, "hello world") == fake_tokenizer().encode("hello world").ids
    pair = await ids_of(client, [TEXT, TEXT])
    assert (pair.count(CLS), pair.count(SEP), pair[-1]) == (1, 2, SEP)


@pytest.mark.parametrize("special_tokens", ["special", "text"])
async def test_documents_are_ranked_as_they_are_read(open_client: OpenClient, special_tokens: str) -> None:
    client = await open_client(task="sequence_classification", head=SCORER, special_tokens=special_tokens)
    pair = await ids_of(client, ["cat", TEXT])
    answer = await client.post("/v1/rerank", json={"query": "cat", "documents": [TEXT], "raw_scores": True})
    (result,) = answer.json()["results"]
    assert result["num_tokens"] == len(pair)
    # The fake model's only logit is half the number of ids that 3 divides.
    assert result["relevance_score"] == sum(token_id % 3 == 0 for token_id in pair) / 2


def test_a_prompt_with_special_tokens_cannot_be_read_as_text(tmp_path: Path) -> None:
    fake_bundle(tmp_path)
    text: TextSpec = fake_manifest(prompts={"plain": "the ", "query": "[CLS] "}).text
    with pytest.raises(StartupError, match="'query' has special tokens"):
        TextTokenizer(tmp_path / TOKENIZER, text, max_text_chars=9, token_ids="framed", special_tokens="text")
