"""What the default model loses in int8, through the HTTP API: next to nothing, and nothing to its neighbours."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fixtures.live import LiveServer, serving
from tests.fixtures.stsb import read_pairs, spearman

pytestmark = pytest.mark.slow

LEAST_SPEARMAN = 81.7
LEAST_COSINE = 0.997
NUM_PAIRS = 32
TOLERANCE = 1e-6
WORDS = (
    "the river rose at its banks and carried mud into the fields while a bank lent money to farmers who had lost their "
    "harvest music from a train station slow fast bright weather Zürich 東京 naïve re-entry 42 questions about law"
).split()


@pytest.fixture(scope="module")
def int8_server(minilm_int8_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A live server over the default model in int8."""
    with serving(tmp_path_factory.mktemp("logs") / "int8.log", str(minilm_int8_bundle)) as server:
        yield server


def embed(server: LiveServer, texts: str | Sequence[str]) -> NDArray[np.float32]:
    """Vectors of length 1. -> [texts, dim]"""
    answer = server.post("/v1/embeddings", {"input": texts})
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


def some_texts(num_texts: int, seed: int) -> list[str]:
    """Of 1 to 120 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 120))) for _ in range(num_texts)]


def test_its_quality_is_near_to_what_was_published(int8_server: LiveServer, shared_data: Path) -> None:
    assert spearman(int8_server.url, read_pairs(shared_data), num_clients=2) >= LEAST_SPEARMAN


def test_its_vectors_point_where_those_of_float32_do(
    int8_server: LiveServer, minilm_server: LiveServer, shared_data: Path
) -> None:
    texts = [text for first, second, _ in read_pairs(shared_data)[:NUM_PAIRS] for text in (first, second)]
    cosines = (embed(int8_server, texts) * embed(minilm_server, texts)).sum(axis=1)
    assert cosines.mean() >= LEAST_COSINE


@pytest.mark.parametrize("num_texts", [2, 7, 64])
def test_a_text_alone_is_the_same_as_in_any_batch(int8_server: LiveServer, num_texts: int) -> None:
    texts = some_texts(num_texts, seed=num_texts)
    together = embed(int8_server, texts)
    for place in random.Random(num_texts).sample(range(num_texts), min(num_texts, 8)):
        assert np.abs(embed(int8_server, texts[place]) - together[place]).max() <= TOLERANCE
