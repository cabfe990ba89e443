"""The same text gives the same vector: alone, anywhere in a list, and among strangers under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import httpx2
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.fixtures.live import LiveServer

TEXT = "What is the weather like today"
WORDS = "river bank music train of the a to slow fast weather bright and 42 Zürich 東京 naïve re-entry".split()
TOLERANCE = 1e-5

# At most 3 tokens a word: every neighbour fits the model.
neighbours = st.lists(st.integers(1, 80), min_size=63, max_size=63)


def vectors(answer: httpx2.Response) -> NDArray[np.float32]:
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


def embed(server: LiveServer, texts: str | Sequence[str]) -> NDArray[np.float32]:
    return vectors(server.post("/v1/embeddings", {"input": texts}))


def passage(num_words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=neighbours, place=st.integers(0, 63), seed=st.integers(0, 2**32))
def test_a_text_ignores_its_neighbours_in_a_list(
    minilm_server: LiveServer, lengths: list[int], place: int, seed: int
) -> None:
    alone = embed(minilm_server, TEXT)[0]
    texts = [passage(length, seed + index) for index, length in enumerate(lengths)]
    texts.insert(place, TEXT)
    together = embed(minilm_server, texts)
    assert len(together) == 64
    assert np.abs(together[place] - alone).max() <= TOLERANCE


async def test_a_text_ignores_strangers_under_load(minilm_server: LiveServer) -> None:
    alone = embed(minilm_server, TEXT)[0]
    limits = httpx2.Limits(max_connections=128)
    async with httpx2.AsyncClient(base_url=minilm_server.url, timeout=120, limits=limits) as client:

        async def post(text: str) -> httpx2.Response:
            return await client.post("/v1/embeddings", json={"input": text})

        strangers = [post(passage(150 + index % 30, index)) for index in range(64)]
        answers = await asyncio.gather(
            *(job for pair in zip((post(TEXT) for _ in range(64)), strangers, strict=True) for job in pair)
        )
    for answer in answers[::2]:
        assert np.abs(vectors(answer)[0] - alone).max() <= TOLERANCE


def test_forty_texts_with_duplicates_come_back_in_their_order(minilm_server: LiveServer) -> None:
    random_texts = random.Random(7)
    for _ in range(5):
        texts = [passage(random_texts.randint(1, 60), random_texts.randint(0, 25)) for _ in range(40)]
        answer = minilm_server.post("/v1/embeddings", {"input": texts})
        data: list[dict[str, Any]] = answer.json()["data"]
        assert [item["index"] for item in data] == list(range(40))
        single = {text: embed(minilm_server, text)[0] for text in set(texts)}
        for text, vector in zip(texts, vectors(answer), strict=True):
            assert np.abs(vector - single[text]).max() <= TOLERANCE
