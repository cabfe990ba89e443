"""The published quality of the default model, through the HTTP API, however the texts are sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.live import LiveServer
from tests.fixtures.stsb import PUBLISHED, TOLERANCE, Pair, read_pairs, spearman

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pairs(shared_data: Path) -> list[Pair]:
    return read_pairs(shared_data)


@pytest.mark.parametrize(
    ("size", "num_clients", "encoding_format"),
    [(1, 1, "float"), (64, 1, "float"), (64, 1, "base64"), (1, 32, "base64")],
    ids=["one by one", "64 at a time", "64 at a time in base64", "32 clients in base64"],
)
def test_stsb_is_what_was_published(
    minilm_server: LiveServer, pairs: list[Pair], size: int, num_clients: int, encoding_format: str
) -> None:
    found = spearman(minilm_server.url, pairs, size=size, num_clients=num_clients, encoding_format=encoding_format)
    assert found == pytest.approx(PUBLISHED, abs=TOLERANCE)
