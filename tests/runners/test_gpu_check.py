"""`make gpu-check`, with the CPU in the GPU's place: what it finds, tells, writes and exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu import PEER, Timing
from service.errors import StartupError
from service.graph_spec import Precision
from service.parity import report
from service.runners import cuda
from service.runners.ort import OrtRunner
from tests.fixtures.command import ROOT
from tools import gpu_check
from tools.gpu_check import Plan, check, make_bundle, tell

PRECISIONS: tuple[Precision, ...] = ("float32", "float16")
QUICK = Timing(num_rounds=2, window_s=0.001)


@pytest.fixture(scope="module")
def plan(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A small check on the CPU; its bundles are built once."""
    work = tmp_path_factory.mktemp("gpu_check")
    plan = Plan(str(tiny_models / "bert_mean"), work, "cpu", batches=(1, 3), lengths=(4, 16), timing=QUICK)
    for precision in PRECISIONS:
        make_bundle(plan, precision)
    return plan


def test_all_is_found_told_and_written(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = check(plan)
    assert findings.faults == []
    assert tell(findings, "cpu", tmp_path / "results" / "out.json") == 0
    names = [f"{precision} {part}" for precision in PRECISIONS for part in ("probes", "battery")]
    written, shown = json.loads((tmp_path / "results" / "out.json").read_text()), capsys.readouterr().out
    assert list(written["parity"]) == names
    assert all(name in shown for name in names)
    assert {gate["limit"] for gate in written["parity"]["float16 battery"]["gates"]} >= {5e-3, 1e-3, 1e-5, 5e-4}
    assert list(written["placement"]) == ["float32 encode", "float32 attend", "float16 encode", "float16 attend"]
    assert written["placement"]["float16 encode"]["CPUExecutionProvider: Attention"] == 2
    shapes = [(row["shape"]["batch"], row["shape"]["seq"]) for row in written["throughput"]]
    assert shapes == [(1, 4), (1, 16), (3, 4), (3, 16)]
    for row in written["throughput"]:
        assert list(row["tokens_per_s"]) == ["qkv float32", "qkv float16", PEER]
        assert all(len(rates) == 2 and min(rates) > 0 for rates in row["tokens_per_s"].values())
        assert row["ratios"][PEER] == 1.0
    assert set(written["memory_bytes"].values()) == {None}
    assert "not known" in shown
    assert "passed" in shown.splitlines()[-1]


def test_a_failed_gate_is_named_and_is_exit_code_1(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = replace(report.GATES["float16", "cpu"], hidden=1e-9)
    monkeypatch.setattr(report, "GATES", {**report.GATES, ("float16", "cpu"): strict})
    findings = check(plan)
    assert any(fault.startswith("float16 battery: token_embeddings: ") for fault in findings.faults)
    assert not any(fault.startswith("float32") for fault in findings.faults)
    assert tell(findings, "cpu", tmp_path / "out.json") == 1
    assert "float16 battery: token_embeddings: " in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["faults"] == findings.faults


def test_bundles_that_do_not_open_on_the_gpu_are_faults(plan: Plan, tmp_path: Path) -> None:
    """As where every library loads and the session comes up on the CPU."""
    if cuda.missing_cuda() is None:
        pytest.skip("this machine has a usable GPU")
    findings = check(replace(plan, device="cuda"))
    assert [fault.partition(":")[0] for fault in findings.faults] == ["float32", "float16"]
    assert all("CUDAExecutionProvider" in fault for fault in findings.faults)
    assert findings.notes == ["PyTorch here has no CUDA: nothing to compare the speed with"]
    assert tell(findings, "cuda", tmp_path / "out.json") == 1


def test_a_bundle_of_another_version_is_built_again(tiny_models: Path, tmp_path: Path) -> None:
    plan = Plan(str(tiny_models / "bert_mean"), tmp_path, "cpu", timing=QUICK)
    (tmp_path / "float32").mkdir()
    manifest = tmp_path / "float32" / "manifest.json"
    manifest.write_text('{"schema_version": 1}')
    assert make_bundle(plan, "float32").manifest.precision == "float32"
    written = manifest.stat().st_mtime_ns
    make_bundle(plan, "float32")
    assert manifest.stat().st_mtime_ns == written


def test_heavy_nodes_on_the_cpu_are_a_fault_and_their_place_is_shown(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StartupError("encode.onnx: 26 heavy nodes were left to the CPU")

    monkeypatch.setattr(OrtRunner, "open", refuse)
    findings = check(plan)
    assert findings.faults == [
        f"{precision}: encode.onnx: 26 heavy nodes were left to the CPU" for precision in PRECISIONS
    ]
    assert findings.placement["float32 attend"]["CPUExecutionProvider: Softmax"] == 2
    assert [list(speed.tokens_per_s) for speed in findings.speeds] == [[PEER]] * 4


def test_without_a_gpu_it_says_what_is_missing_and_exits_with_0(tmp_path: Path) -> None:
    reason = cuda.missing_gpu()
    if reason is None:
        pytest.skip("this machine has a GPU")
    words = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "tools.gpu_check", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"no GPU here: {reason}; nothing was checked\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["the cpu extra", "two runtimes"])
def test_a_gpu_that_cannot_be_used_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    monkeypatch.setattr(gpu_check, "missing_gpu", lambda: None)
    monkeypatch.setattr(
        gpu_check, "missing_cuda", lambda: "install the gpu extra" if fault == "the cpu extra" else None
    )
    if fault == "two runtimes":
        monkeypatch.setattr("service.runners.runtimes.version", lambda package: "1.0")
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 1
    shown = capsys.readouterr().out
    assert shown.startswith("the GPU cannot be used: ")
    assert ("install the gpu extra" if fault == "the cpu extra" else "overwrite each other") in shown
