"""From the start of the process to the first answer: alive at once, ready only when warm, small before any load."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import httpx2
import pytest

from tests.fixtures.live import LiveServer, serving, spawn

pytestmark = pytest.mark.alone

MAX_READY_S = 3.0
MAX_IDLE_RSS_MB = 250
BODY = {"input": "a cat is on the river bank"}


def test_alive_at_once_ready_when_warm_and_the_first_answer_is_no_slower(mid_bundle: Path, tmp_path: Path) -> None:
    server = spawn(tmp_path / "log", str(mid_bundle))
    started_s = time.monotonic()
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        try:
            assert _wait_alive(client) - started_s <= 2
            if client.get("/health/ready").status_code == 503:
                early = client.post("/v1/embeddings", json=BODY)
                assert early.status_code == 503
                assert 1 <= int(early.headers["retry-after"]) <= 120
            while client.get("/health/ready").status_code != 200:
                assert time.monotonic() - started_s < 30, server.log
                time.sleep(0.02)
            first, *warm = [_seconds(client) for _ in range(41)]
        finally:
            server.stop()
    assert first <= 3 * statistics.median(warm)


@pytest.mark.real_model
def test_the_default_model_is_ready_in_3_s_and_small_before_load(minilm_bundle: Path, tmp_path: Path) -> None:
    starts = []
    for _ in range(3):  # another program may hold one start up: the best one is the server's own
        started_s = time.monotonic()
        with serving(tmp_path / "log", str(minilm_bundle)) as server:
            starts.append(time.monotonic() - started_s)
            assert server.rss_mb <= MAX_IDLE_RSS_MB
            _check_answers(server)
    assert min(starts) <= MAX_READY_S


def _wait_alive(client: httpx2.Client) -> float:
    while True:
        try:
            if client.get("/health/live").status_code == 200:
                return time.monotonic()
        except httpx2.TransportError:
            time.sleep(0.02)


def _seconds(client: httpx2.Client) -> float:
    started_s = time.perf_counter()
    assert client.post("/v1/embeddings", json=BODY).status_code == 200
    return time.perf_counter() - started_s


def _check_answers(server: LiveServer) -> None:
    assert len(server.post("/v1/embeddings", BODY).json()["data"][0]["embedding"]) == 384
