"""The published quality of the default model, through the HTTP API, however the texts are sent."""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from tests.fixtures.live import LiveServer

PUBLISHED = 82.03

Vectors = NDArray[np.float32]


@pytest.fixture(scope="module")
def pairs(shared_data: Path) -> list[tuple[str, str, float]]:
    with (shared_data / "stsb" / "stsb-en-test.csv").open(encoding="utf-8", newline="") as file:
        return [(first, second, float(score)) for first, second, score in csv.reader(file)]


def embed(client: httpx2.Client, texts: Sequence[str], encoding_format: str) -> list[Vectors]:
    answer = client.post("/v1/embeddings", json={"input": list(texts), "encoding_format": encoding_format})
    assert answer.status_code == 200, answer.text
    found = [item["embedding"] for item in answer.json()["data"]]
    if encoding_format == "base64":
        return [np.frombuffer(base64.b64decode(item), "<f4") for item in found]
    return [np.array(item, dtype=np.float32) for item in found]


def chunks(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (texts[start : start + size] for start in range(0, len(texts), size))


def spearman(vectors: Sequence[Vectors], pairs: Sequence[tuple[str, str, float]]) -> float:
    cosines = [float(vectors[2 * i] @ vectors[2 * i + 1]) for i in range(len(pairs))]
    return 100 * float(spearmanr(cosines, [score for _, _, score in pairs]).statistic)


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@pytest.mark.parametrize(
    ("size", "num_clients"), [(1, 1), (64, 1), (1, 32)], ids=["one by one", "64 at a time", "32 clients"]
)
def test_stsb_is_what_was_published(
    minilm_server: LiveServer, pairs: list[tuple[str, str, float]], size: int, num_clients: int, encoding_format: str
) -> None:
    texts = [text for first, second, _ in pairs for text in (first, second)]
    with (
        httpx2.Client(base_url=minilm_server.url, timeout=120) as client,
        ThreadPoolExecutor(num_clients) as pool,
    ):
        answers = pool.map(lambda part: embed(client, part, encoding_format), chunks(texts, size))
        vectors = [vector for answer in answers for vector in answer]
    assert spearman(vectors, pairs) == pytest.approx(PUBLISHED, abs=0.03)
