"""The load generator counts what it got, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from bench.load import Job, run
from tests.fixtures.command import ROOT

pytestmark = pytest.mark.alone


def job(port: int) -> Job:
    return Job("127.0.0.1", port, "/any", ['{"input": "text"}'], clients=4, warm_up_s=0.05, window_s=0.3)


def test_every_answer_is_counted_once(echo_port: int) -> None:
    load = run(job(echo_port))
    assert load.num_requests >= 20
    assert load.num_errors == 0
    assert load.requests_per_s == pytest.approx(load.num_requests / 0.3, rel=0.5)
    assert 0 < load.p50_ms <= load.p99_ms < 300
    # A closed loop: with four clients, four answers come in the time that one takes.
    assert load.p50_ms * load.requests_per_s == pytest.approx(4_000, rel=0.5)


def test_answers_that_are_not_200_are_errors(echo_port: int) -> None:
    load = run(replace(job(echo_port), bodies=["good", "bad"]))
    assert load.num_errors == pytest.approx(load.num_requests / 2, abs=4)


def test_large_answers_in_pieces_are_counted_whole(echo_port: int) -> None:
    load = run(replace(job(echo_port), bodies=["x" * 5_000], clients=1, min_requests=3))
    assert load.num_requests >= 3
    assert load.num_errors == 0


def test_nobody_listens() -> None:
    with pytest.raises(OSError, match="refused"):
        run(job(1))


def test_the_process_reads_a_job_and_writes_a_result(echo_port: int) -> None:
    words = [sys.executable, "-m", "bench.load"]
    done = subprocess.run(words, input=json.dumps(asdict(job(echo_port))), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_requests"] >= 20
