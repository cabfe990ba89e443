"""Bundles built as a user builds them, and one live server over the default model for the whole run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.live import LiveServer, serving

# torch cannot be imported: the bundle is built and proved as on a machine that has none.
_WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from qkv.__main__ import main; main()"


def export(*arguments: str, python: tuple[str, ...] = ("-m", "qkv")) -> None:
    """`qkv export` as a command. Raises with its output when it fails."""
    command = [sys.executable, *python, "export", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def minilm_bundle(minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's bundle, built without torch."""
    out = tmp_path_factory.mktemp("bundles") / "all-MiniLM-L6-v2"
    export("all-MiniLM-L6-v2", "--out", str(out), python=("-c", _WITHOUT_TORCH))
    return out


@pytest.fixture(scope="session")
def tiny_bundle(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model's bundle, proved against PyTorch."""
    out = tmp_path_factory.mktemp("bundles") / "tiny"
    export(str(tiny_models / "bert_mean"), "--out", str(out))
    return out


@pytest.fixture(scope="session")
def minilm_server(minilm_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A live server over the default model."""
    with serving(tmp_path_factory.mktemp("logs") / "server.log", str(minilm_bundle)) as server:
        yield server
