"""The rate that is reported is the one that users, waits and latency make; the wait is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.loadtest.command import finish, loadtest, start
from tests.loadtest.stub import Stub, serving

USERS, WAIT_S, LATENCY_S = 10, 0.1, 0.010
EXPECTED_PER_S = USERS / (LATENCY_S + WAIT_S)
WAIT = "wait: every user waits 0.05 to 0.15 s, on average 0.1 s, after each reply"


@pytest.mark.slow
def test_rate_and_median_of_our_command(tmp_path: Path) -> None:
    stub = Stub(latency_s=LATENCY_S)
    with serving(stub) as url:
        words = (
            "--url",
            url,
            "--users",
            str(USERS),
            "--wait",
            str(WAIT_S),
            "--duration",
            "8",
            "--kinds",
            "short,mixed",
        )
        done = loadtest(tmp_path, *words)
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
def test_rate_and_median_of_the_locustfile(tmp_path: Path) -> None:
    with serving(Stub(latency_s=LATENCY_S)) as url:
        load = ("-u", str(USERS), "-r", str(USERS), "-t", "6s", "--wait", str(WAIT_S), "--tags", "short", "mixed")
        words = ("-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--host", url, *load)
        done = finish(start(*words), tmp_path)
    assert done.code == 0, done.output
    assert WAIT in done.output
    cells = next(line for line in done.output.splitlines() if re.search(r"│ all ", line)).split("│")
    per_s, p50_ms = float(cells[6]), float(cells[8])
    assert per_s == pytest.approx(EXPECTED_PER_S, rel=0.1)
    assert p50_ms == pytest.approx(1000 * LATENCY_S, abs=5)
