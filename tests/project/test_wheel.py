"""The wheel holds every module and every data file, and imports from where it was installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.project.torch_files import NEED_TORCH

ROOT = Path(__file__).parents[2]
PACKAGES = ("models", "export", "service", "qkv")
DATA_SUFFIXES = {".css", ".html", ".js", ".png", ".svg", ".ico", ".safetensors"}

# Only the wheel and the packages it depends on can be found: not the repository, not an editable install of it.
_IMPORT_ALL = """
import importlib, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
for name in sys.argv[2:]:
    module = importlib.import_module(name)
    assert module.__file__.startswith(sys.argv[1]), module.__file__
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is written into the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, names.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("qkv-*.whl"))


def modules() -> list[str]:
    """Every module of ours, by its dotted name."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]


def test_the_wheel_holds_every_data_file_and_no_test(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    data = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.suffix in DATA_SUFFIXES
    }
    assert data
    assert data - held == set()
    assert [name for name in held if name.startswith(("tests/", "bench/", "tools/"))] == []


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory where the wheel was installed, alone."""
    target = tmp_path_factory.mktemp("site")
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def import_from(site: Path, names: list[str], cwd: Path, *, first: str = "") -> subprocess.CompletedProcess[str]:
    """Import modules of the installed wheel in a fresh interpreter far from the repository. first: code before that."""
    return subprocess.run(
        [sys.executable, "-P", "-c", first + _IMPORT_ALL, str(site), *names],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def needs_torch(name: str) -> bool:
    """True for the models, all but plain data, and for what imports torch at its top."""
    plain = {"models", *(f"models.{name}" for name in ("buckets", "config", "frequencies", "head_config", "signature"))}
    is_known_without = name in plain or name.startswith("models.families")
    others = {file.removesuffix(".py").replace("/", ".") for file in NEED_TORCH}
    return name in others or (name.startswith("models") and not is_known_without)


def test_every_module_imports_from_the_installed_wheel(site: Path, tmp_path: Path) -> None:
    done = import_from(site, modules(), tmp_path)
    assert done.returncode == 0, done.stderr


def test_all_but_the_models_import_without_torch(site: Path, tmp_path: Path) -> None:
    names = [name for name in modules() if not needs_torch(name)]
    assert {"service.app", "export.bundle", "qkv.prove", "models.families.known"} <= set(names)
    done = import_from(site, names, tmp_path, first="import sys; sys.modules['torch'] = None")
    assert done.returncode == 0, done.stderr


def test_the_installed_command_answers(wheel: Path, site: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [str(site / "bin" / "qkv"), "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, wheel.name.split("-")[1])
