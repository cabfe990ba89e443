"""The same text gives the same vector: alone, anywhere in a list, and among strangers under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.fixtures.live import LiveServer, serving

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


async def test_a_bad_neighbour_in_the_same_moment_harms_nobody(minilm_server: LiveServer) -> None:
    async with httpx2.AsyncClient(base_url=minilm_server.url, timeout=60) as client:
        texts = ["a good text", "dog " * 600, "another good text"]
        expected = [embed(minilm_server, text)[0] for text in (texts[0], texts[2])]
        for _ in range(5):
            first, bad, last = await asyncio.gather(
                *(client.post("/v1/embeddings", json={"input": text}) for text in texts)
            )
            assert bad.json()["error"]["code"] == "context_length_exceeded"
            for answer, wanted in ((first, expected[0]), (last, expected[1])):
                assert np.abs(vectors(answer)[0] - wanted).max() <= TOLERANCE


@pytest.mark.slow
def test_two_thousand_mixed_requests_from_many_threads_equal_the_single_ones(tiny_bundle: Path, tmp_path: Path) -> None:
    words = "cat dog red blue fast slow good bad river bank".split()
    rng = random.Random(0)

    def request(number: int) -> tuple[str, dict[str, Any]]:
        text = " ".join(rng.choices(words, k=rng.choice([1, 5, 20, 60, 100, 400])))
        kind = number % 4
        if kind == 0:
            return "/v1/tokenize", {"input": [text, [text, "a pair"]]}
        if kind == 1:
            return "/v1/encode", {"input": [[text, "second"]], "truncate": rng.choice(["left", "right"])}
        return "/v1/embeddings", {"input": text, "truncate": kind == 2}

    requests = [request(number) for number in range(2000)]
    with (
        serving(tmp_path / "log", str(tiny_bundle)) as server,
        httpx2.Client(base_url=server.url, timeout=60) as client,
    ):

        def post(item: tuple[str, dict[str, Any]]) -> httpx2.Response:
            return client.post(item[0], json=item[1])

        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(post, requests))
        assert {answer.status_code for answer in answers} == {200, 400}
        for item, answer in list(zip(requests, answers, strict=True))[::40]:
            again = post(item)
            assert again.status_code == answer.status_code
            assert_same(answer.json(), again.json())


def assert_same(found: Any, expected: Any) -> None:
    """Equal, numbers within the tolerance."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list) and expected and isinstance(expected[0], float):
        assert np.abs(np.subtract(found, expected)).max() <= TOLERANCE
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.mark.real_model
@pytest.mark.parametrize("num_threads", [None, "1"])
def test_two_cold_starts_give_equal_bits(minilm_bundle: Path, tmp_path: Path, num_threads: str | None) -> None:
    """A text alone, whatever the threads; a list where one thread runs its calls, so that they are the same calls."""
    texts = [passage(length, length) for length in (0, 1, 7, 40, 90)]
    requests = [*texts, texts] if num_threads else texts
    # No canary beside a request: it would not be alone then.
    env = {"QKV_CANARY_INTERVAL_S": "3600"} | ({"QKV_NUM_THREADS": num_threads} if num_threads else {})
    found: list[list[bytes]] = []
    for start in range(2):
        with serving(tmp_path / f"{start}.log", str(minilm_bundle), env=env) as server:
            bodies = [{"input": item, "include": ["embedding", "attention"]} for item in requests]
            answers = [server.post("/v1/encode", body | {"encoding_format": "base64"}) for body in bodies]
            assert {answer.status_code for answer in answers} == {200}
            found.append([answer.content for answer in answers])
    assert found[0] == found[1]
    assert len(set(found[0])) == len(requests)
