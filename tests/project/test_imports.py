"""Who may know whom: what the import contracts cannot say, held here by reading the source and by blocking modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.torch_files import NEED_TORCH

ROOT = Path(__file__).parents[2]

# What export may take from the service: the bundle, its errors, and what proves it.
EXPORT_MAY_USE = (
    "service.bundle",
    "service.graph_spec",
    "service.manifest",
    "service.errors",
    "service.runners",
    "service.engine.batch",
    "service.engine.tokenizer",
)


def imports_of(file: Path) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether it does so at its top level."""
    tree = ast.parse(file.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, id(node) in top


@pytest.mark.parametrize("file", sorted((ROOT / "export").rglob("*.py")), ids=lambda path: path.name)
def test_export_takes_from_the_service_only_the_bundle_and_the_proof(file: Path) -> None:
    used = [name for name, _ in imports_of(file) if name == "service" or name.startswith("service.")]
    allowed = (*EXPORT_MAY_USE, "service.parity")
    assert [name for name in used if not name.startswith(allowed)] == []


@pytest.mark.parametrize("package", ["models", "export", "service", "qkv", "loadtest"])
def test_package_roots_import_nothing(package: str) -> None:
    roots = list((ROOT / package).rglob("__init__.py"))
    assert roots
    assert [(str(file), name) for file in roots for name, _ in imports_of(file)] == []


@pytest.mark.parametrize("package", ["export", "qkv", "service"])
def test_torch_is_imported_only_on_demand(package: str) -> None:
    files = set((ROOT / package).rglob("*.py")) - {ROOT / file for file in NEED_TORCH}
    modules = {file.removesuffix(".py").replace("/", ".") for file in NEED_TORCH}
    eager = [
        (file.name, name)
        for file in files
        for name, is_top in imports_of(file)
        if is_top and (name.split(".")[0] == "torch" or name in modules)
    ]
    assert eager == []


def run_blocked(code: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter where these modules cannot be imported."""
    block = "".join(f"sys.modules[{name!r}] = None; " for name in blocked)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {block}{code}"], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize("module", ["service.app", "service.server", "service.__main__", "qkv.serve"])
def test_serving_needs_no_torch_no_transformers_no_onnx(module: str) -> None:
    done = run_blocked(f"import {module}", "torch", "transformers", "onnx", "sentence_transformers", "models", "export")
    assert done.returncode == 0, done.stderr


def test_encoding_files_needs_neither_http_nor_what_builds_nor_parquet() -> None:
    blocked = ("torch", "transformers", "onnx", "models", "export", "fastapi", "starlette", "uvicorn", "pyarrow")
    done = run_blocked("import qkv.encode", *blocked)
    assert done.returncode == 0, done.stderr


def test_building_needs_no_torch_and_no_transformers() -> None:
    done = run_blocked("import export.bundle", "torch", "transformers", "sentence_transformers", "fastapi", "uvicorn")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [[], ["encode"], ["export"], ["models"], ["parity"], ["serve"]], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    heavy = (
        "torch",
        "onnx",
        "onnxruntime",
        "transformers",
        "numpy",
        "fastapi",
        "tokenizers",
        "pyarrow",
        "models",
        "export",
    )
    done = run_blocked(f"from qkv.__main__ import main; sys.argv = {['qkv', *words, '--help']!r}; main()", *heavy)
    assert done.returncode == 0, done.stderr
    assert f"Usage: {' '.join(['qkv', *words])}" in done.stdout


def test_onnx_runtime_is_imported_in_one_place_only() -> None:
    files = [file for package in ("service", "export", "qkv", "bench") for file in (ROOT / package).rglob("*.py")]
    found = [file.name for file in files for name, _ in imports_of(file) if name.split(".")[0] == "onnxruntime"]
    assert found == ["library.py"]
