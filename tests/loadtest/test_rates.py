"""The rate that is reported is the one that users, waits and latency make; the wait is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.loadtest.command import finish, loadtest, start, write_limits
from tests.loadtest.stub import Reply, Stub, serving

USERS, WAIT_S, LATENCY_S = 10, 0.3, 0.010
EXPECTED_PER_S = USERS / (LATENCY_S + WAIT_S)
WAIT = "wait: every user waits 0.15 to 0.45 s, on average 0.3 s, after each reply"


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    """Other work may share the machine; what is looked at here is looked at without the verdict."""
    return write_limits(tmp_path / "limits.toml", 2_000, max_lateness_ms=200)


@pytest.mark.slow
def test_rate_and_median_of_our_command(limits: Path, tmp_path: Path) -> None:
    stub = Stub(latency_s=LATENCY_S)
    with serving(stub) as url:
        load = ("--users", str(USERS), "--wait", str(WAIT_S), "--duration", "7", "--kinds", "short,mixed")
        done = loadtest(tmp_path, "--url", url, *load, "--thresholds", str(limits))
    assert done.code == 0, done.output
    assert WAIT in done.output
    assert done.result is not None
    (total,) = [row for row in done.result["figures"] if row["kind"] == "all"]
    assert total["per_s"] == pytest.approx(EXPECTED_PER_S, rel=0.1)
    assert total["p50_ms"] == pytest.approx(1000 * LATENCY_S, abs=5)
    # The server's own count agrees: nothing was sent twice, nothing was left out.
    num_learnt = 2 * 8
    assert len(stub.bodies) - num_learnt == done.result["num_replies"]
    assert all(set(body) == {"input", "model"} for body in stub.bodies)


@pytest.mark.slow
def test_rate_and_median_of_the_locustfile(limits: Path, tmp_path: Path) -> None:
    with serving(Stub(latency_s=LATENCY_S)) as url:
        load = ("-u", str(USERS), "-r", str(USERS), "-t", "7s", "--wait", str(WAIT_S), "--tags", "short", "mixed")
        words = ("-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--host", url, *load)
        done = finish(start(*words, "--thresholds", str(limits)), tmp_path)
    assert done.code == 0, done.output
    assert WAIT in done.output
    cells = next(line for line in done.output.splitlines() if re.search(r"│ all ", line)).split("│")
    per_s, p50_ms = float(cells[6]), float(cells[8])
    assert per_s == pytest.approx(EXPECTED_PER_S, rel=0.1)
    assert p50_ms == pytest.approx(1000 * LATENCY_S, abs=5)


def test_the_locustfile_fails_with_the_reason_too(tmp_path: Path) -> None:
    with serving(Stub(fault=lambda reply, stub: Reply({"data": []}), num_right=8)) as url:
        words = ("-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--host", url, "-u", "2", "-t", "2s")
        done = finish(start(*words, "--wait", "0.1", "--tags", "short"), tmp_path)
    assert done.code == 1, done.output
    assert "wrong number of vectors: 0 for 1 inputs" in done.output
