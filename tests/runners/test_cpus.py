"""Threads come from what the process may really use."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.bundle import open_bundle
from service.runners import cpus
from service.runners.ort import OrtRunner


@pytest.mark.parametrize(
    ("content", "expected"), [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("rubbish", None)]
)
def test_quota_of_a_cgroup_v2(tmp_path: Path, content: str, expected: float | None) -> None:
    (tmp_path / "cpu.max").write_text(content + "\n")
    assert cpus.cgroup_quota(tmp_path / "cpu.max", tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", None), ("400000", 4.0)])
def test_quota_of_a_cgroup_v1(tmp_path: Path, quota: str, expected: float | None) -> None:
    (tmp_path / "cpu.cfs_quota_us").write_text(quota + "\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus.cgroup_quota(tmp_path / "absent", tmp_path) == expected


def test_without_cgroups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpus.cgroup_quota(tmp_path / "absent", tmp_path / "absent") is None


@pytest.mark.parametrize(("affinity", "quota", "expected"), [(8, None, 8), (8, 2.5, 3), (2, 4.0, 2), (4, 0.2, 1)])
def test_the_least_of_affinity_and_quota_counts(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(cpus, "cgroup_quota", lambda: quota)
    assert cpus.usable_cpus() == expected


@pytest.mark.parametrize(("usable", "expected"), [(1, 1), (16, 16), (32, 32), (192, 32)])
def test_nobody_gets_more_threads_than_fit_into_the_containers_memory_unless_asked(
    monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path, usable: int, expected: int
) -> None:
    monkeypatch.setattr(cpus, "usable_cpus", lambda: usable)
    bundle = open_bundle(tiny_bundle)
    assert OrtRunner.open(bundle).info().num_threads == expected
    assert OrtRunner.open(bundle).info().num_workers == expected
    assert OrtRunner.open(bundle, num_threads=40).info().num_threads == 40
