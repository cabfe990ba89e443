"""Memory is bounded, threads follow the affinity mask, and a device that is not there is never replaced in silence."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from tests.fixtures.live import LiveServer, serving, spawn

pytestmark = pytest.mark.alone

WORDS = "hello world cat dog red blue fast slow good bad river bank music train".split()


@pytest.mark.slow
def test_a_thousand_long_texts_in_one_call_stay_within_600_mb(mid_bundle: Path, tmp_path: Path) -> None:
    texts = [" ".join(random.Random(seed).choices(WORDS, k=498)) for seed in range(1000)]
    with serving(tmp_path / "log", str(mid_bundle)) as server:
        server.post("/v1/embeddings", {"input": "hello"})
        idle, peak, done = server.rss_mb, 0.0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.01):
                peak = max(peak, server.rss_mb)

        watcher = threading.Thread(target=watch)
        watcher.start()
        answer = server.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"})
        done.set()
        watcher.join()
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == 500_000
    assert peak - idle <= 600


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity masks on this system")
def test_threads_follow_the_affinity_mask_and_an_explicit_number_wins(tiny_bundle: Path, tmp_path: Path) -> None:
    one_core = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
    for env, expected in (({}, 1), ({"QKV_NUM_THREADS": "3"}, 3)):
        started_s = time.monotonic()
        with serving(tmp_path / "log", str(tiny_bundle), env=env, prefix=one_core) as server:
            assert time.monotonic() - started_s < 10
            assert server.get("/v1/models").json()["data"][0]["num_threads"] == expected
            assert "affinity" not in server.log


def test_cuda_without_a_gpu_refuses_to_start_and_says_what_is_missing(tiny_bundle: Path, tmp_path: Path) -> None:
    server = spawn(tmp_path / "log", str(tiny_bundle), env={"QKV_DEVICE": "cuda"})
    assert server.process.wait(15) != 0
    last = server.log.strip().splitlines()[-1]
    assert "QKV_DEVICE=cuda" in last
    assert "CUDA provider" in last or "driver" in last


def test_auto_without_a_gpu_warns_and_reports_what_runs(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log", str(tiny_bundle), env={"QKV_DEVICE": "auto"}) as server:
        assert "WARNING" in server.log
        assert server.get("/v1/models").json()["data"][0]["provider"] == "CPUExecutionProvider"
        assert 'provider="CPUExecutionProvider"' in server.get("/metrics").text


@pytest.mark.real_model
def test_a_server_that_was_never_asked_for_attention_never_pays_for_it(minilm_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log", str(minilm_bundle)) as server:
        started = server.rss_mb
        server.post("/v1/embeddings", {"input": "hello"})
        used = server.rss_mb
        assert used - started < 20
        _check_attention(server)
        # Its packed weights alone take more: had the graph been there before, this would not grow.
        assert server.rss_mb - used > 40


def _check_attention(server: LiveServer) -> None:
    answer = server.post("/v1/encode", {"input": "hello", "include": ["attention"]})
    assert answer.json()["data"][0]["attention"][0]["shape"] == [12, 3, 3]
