"""What the Makefile installs, builds and removes: in a folder of its own, by commands that note what they are asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.command import ROOT

# `pip show X` succeeds when X is in the file `packages`; install and uninstall keep that file.
PIP = """#!/bin/sh
echo "pip $*" >> log
case "$1" in
    show) grep -qx "$3" packages ;;
    uninstall) : > packages ;;
    install) case "$*" in
        *"[gpu,"*) echo onnxruntime-gpu > packages ;;
        *"[cpu,"*) echo onnxruntime > packages ;;
    esac ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The Makefile, and both environments with such commands."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "packages", "log"):
        (tmp_path / name).touch()
    for environment in (".venv", ".venv-dev"):
        say(tmp_path / environment / "bin" / "pip", PIP)
        for command in ("python", "qkv"):
            say(tmp_path / environment / "bin" / command, f'#!/bin/sh\necho "{command} $*" >> log\n')
    return tmp_path


def say(file: Path, script: str) -> None:
    """Write a command."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    file.chmod(0o755)


def make(folder: Path, *words: str, code: int = 0) -> list[str]:
    """Run make. -> what the commands were asked, line by line"""
    (folder / "log").write_text("")
    environment = {name: value for name, value in os.environ.items() if name not in ("RUNTIME", "MAKEFLAGS")}
    done = subprocess.run(["make", *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return [*(folder / "log").read_text().splitlines(), *done.stderr.splitlines()]


def installs(lines: list[str]) -> list[str]:
    """The extras that were installed, and `-` for each time that the runtimes were taken out."""
    found = []
    for line in lines:
        if line.startswith("pip uninstall") and "onnxruntime onnxruntime-gpu" in line:
            found.append("-")
        elif "--editable" in line:
            found.append(line.partition("[")[2].partition(",")[0])
    return found


@pytest.mark.parametrize("target", ["serve", "gpu-check"])
def test_a_runtime_that_is_asked_for_replaces_the_one_that_is_there(folder: Path, target: str) -> None:
    assert installs(make(folder, target)) == ["cpu"]
    assert installs(make(folder, target)) == []
    assert installs(make(folder, target, "RUNTIME=gpu")) == ["-", "gpu"]
    assert installs(make(folder, target, "RUNTIME=gpu")) == []
    assert installs(make(folder, target)) == [], "what is there stays when nothing is asked for"
    assert installs(make(folder, target, "RUNTIME=cpu")) == ["-", "cpu"]


def test_a_new_environment_gets_the_runtime_that_is_asked_for(folder: Path) -> None:
    assert installs(make(folder, "gpu-check", "RUNTIME=gpu")) == ["gpu"]


def test_the_development_environment_can_be_had_alone(folder: Path) -> None:
    lines = make(folder, "install")
    assert installs(lines) == ["cpu"]
    assert any("torch" in line for line in lines if "--editable" in line)
    assert [line for line in lines if not line.startswith("pip ")] == []
    assert (folder / ".venv-dev" / "installed-cpu").exists()


def test_another_requirement_is_installed_again(folder: Path) -> None:
    make(folder, "serve", "RUNTIME=gpu")
    os.utime(folder / "pyproject.toml", (2e9, 2e9))
    assert installs(make(folder, "serve")) == ["gpu"]


def test_a_runtime_that_there_is_not_is_refused(folder: Path) -> None:
    assert "RUNTIME is cpu or gpu, got cuda" in make(folder, "serve", "RUNTIME=cuda", code=2)[-1]


def test_clean_leaves_the_bundles_of_users(folder: Path) -> None:
    own = ["bundles/all-MiniLM-L6-v2", "bundles/gpu-check/float32", "bench/results", "loadtest/results"]
    for name in (*own, "bundles/mine", "deploy/bundles/other"):
        (folder / name).mkdir(parents=True)
    make(folder, "clean")
    assert [name for name in (*own, ".venv", ".venv-dev") if (folder / name).exists()] == []
    assert (folder / "bundles" / "mine").is_dir()
    assert (folder / "deploy" / "bundles" / "other").is_dir()
    (folder / "bundles" / "mine").rmdir()
    make(folder, "clean")
    assert not (folder / "bundles").exists()


def test_a_server_elsewhere_needs_no_bundle(folder: Path) -> None:
    assert any(line.startswith("qkv models") for line in make(folder, "loadtest"))
    for target in ("loadtest", "soak"):
        asked = make(folder, target, "ARGS=--url http://host:8000")
        assert not any(line.startswith("qkv") for line in asked)
        assert "--url http://host:8000" in asked[-1]


def test_the_bundle_is_built_once_and_again_when_this_version_does_not_read_it(folder: Path, tiny_models: Path) -> None:
    real = f"env PYTHONPATH={ROOT} OMP_NUM_THREADS=1 {sys.executable} -m qkv"
    say(folder / ".venv" / "bin" / "qkv", f'#!/bin/sh\necho "qkv $*" >> log\ntest "$1" = serve || exec {real} "$@"\n')
    words = ("serve", f"MODEL={tiny_models / 'bert_mean'}", "BUNDLE=bundles/tiny")
    builds = [sum(line.startswith("qkv export") for line in make(folder, *words)) for _ in range(2)]
    assert builds == [1, 0]
    manifest = folder / "bundles" / "tiny" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 1}))
    asked = make(folder, *words)
    assert [line.split()[1] for line in asked if line.startswith("qkv ")] == ["models", "export", "serve"]
    assert json.loads(manifest.read_text())["schema_version"] != 1
