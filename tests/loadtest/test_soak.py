"""A real server: its capacity is searched, then it is soaked at four fifths of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loadtest.command import loadtest


@pytest.mark.slow
def test_a_soak_at_80_percent_of_the_capacity(tiny_bundle: Path, tmp_path: Path) -> None:
    # The tiny model takes 64 tokens of a letter each.
    words = ("--bundle", str(tiny_bundle), "--max-words", "6", "--wait", "0.1", "--step-s", "1.5")
    done = loadtest(tmp_path, *words, "--shape", "soak", "--duration", "30")
    assert done.code == 0, done.output
    assert "80% of the capacity" in done.output
    soak = done.result
    assert soak is not None
    assert (soak["shape"], soak["num_failed"], soak["faults"]) == ("soak", 0, [])
    assert len(soak["memory_mib"]) >= 25
    assert soak["num_replies"] > 1_000
