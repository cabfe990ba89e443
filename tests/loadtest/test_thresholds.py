"""Limits are read whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.errors import LoadTestError
from loadtest.texts import KINDS
from loadtest.thresholds import DEFAULT_FILE, Latencies, read_thresholds


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = DEFAULT_FILE.read_text()
    assert old in text
    file = tmp_path / "limits.toml"
    file.write_text(text.replace(old, new, 1))
    return file


def test_the_shipped_limits_are_whole_and_cover_every_kind() -> None:
    limits = read_thresholds()
    assert set(Latencies.model_fields) == set(KINDS)
    assert all(limits.p95_ms.of(kind) <= limits.p99_ms.of(kind) for kind in KINDS)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_failure_ratio", "max_failures", "max_failure_ratio: is missing; max_failures: is no threshold"),
        ("passage", "pasage", "p95_ms.passage: is missing; p95_ms.pasage: is no threshold"),
        ("[soak]", "[soaked]", "soak: is missing; soaked: is no threshold"),
        ("min_per_s = 1.0", 'min_per_s = "many"', "min_per_s: "),
        ("min_compared_share = 0.01", "min_compared_share = 0.001", "min_compared_share: "),
        ("min_per_s = 1.0", "min_per_s =", "Invalid value"),
        ("min_per_s = 1.0", 'min_per_s = "1.0"', "min_per_s: Input should be a valid number"),
        ("min_per_s = 1.0", "min_per_s = true", "min_per_s: Input should be a valid number"),
        ("min_per_s = 1.0", "min_per_s = nan", "min_per_s: "),
        ("min_per_s = 1.0", "min_per_s = " + "9" * 400, "min_per_s: "),
        ("min_per_s = 1.0", "min_per_s = " + "[" * 10_000, "recursion"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    file = changed(tmp_path, old, new)
    with pytest.raises(LoadTestError) as caught:
        read_thresholds(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert words in str(caught.value)


def test_a_file_is_read_as_utf_8_with_or_without_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    text = DEFAULT_FILE.read_text("utf-8")
    file.write_text(text, "utf-8-sig")
    assert read_thresholds(file) == read_thresholds()
    file.write_text(text, "utf-16")
    with pytest.raises(LoadTestError, match=r"limits\.toml: is not UTF-8: invalid start byte at byte 0"):
        read_thresholds(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadTestError, match=r"none\.toml"):
        read_thresholds(tmp_path / "none.toml")
