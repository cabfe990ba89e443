"""The command line as a user runs it: a process, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]

# A module whose value is None cannot be imported.
_BLOCKED = "import sys; sys.modules.update(dict.fromkeys({names!r})); from qkv.__main__ import main; main()"


def run_qkv(
    *words: str, cwd: Path = ROOT, blocked: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `qkv`. blocked: modules that cannot be imported. env: further variables."""
    command = ["-c", _BLOCKED.format(names=blocked)] if blocked else ["-m", "qkv"]
    return subprocess.run(
        [sys.executable, *command, *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "dumb", "COLUMNS": "160"} | env,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="session")
def qkv() -> Run:
    """`run_qkv`."""
    return run_qkv


@pytest.fixture(scope="session")
def bundle(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's bundle, exported without torch and without proof."""
    out = tmp_path_factory.mktemp("bundles") / "tiny"
    done = run_qkv("export", str(tiny_models / "bert_mean"), "--out", str(out), "--unproved", blocked=("torch",))
    assert done.returncode == 0, done.stderr
    return out
