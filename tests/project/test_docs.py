"""Documents that cannot lie: their tables, paths and targets are compared with the code."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import errors, manifest
from service.app import HOT_ROUTES
from tests.fixtures.doc_tables import DOCUMENTS as GENERATED
from tests.fixtures.doc_tables import filled, settings_table

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", GENERATED)
def test_what_documents_say_of_the_code_is_current(name: str) -> None:
    document = (ROOT / "docs" / name).read_text()
    assert filled(name) == document, "run `python -m tests.fixtures.doc_tables`"


def test_every_setting_says_what_is_allowed() -> None:
    rows = [line.split(" | ") for line in settings_table().splitlines()[2:]]
    assert [row[0] for row in rows if not row[2].strip() or "any" in row[2]] == []


def section(title: str) -> str:
    """One section of the document on operation."""
    text = (ROOT / "docs" / "operations.md").read_text()
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def codes_of(file: Path) -> Iterator[tuple[str, int | None]]:
    """Every error code in a file, and its status where the error's class says it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            kind = getattr(errors, node.func.id, None) if isinstance(node.func, ast.Name) else None
            given = {word.arg: word.value for word in node.keywords}.get("code")
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield given.value, getattr(kind, "status", None)
            elif given is None and isinstance(kind, type) and issubclass(kind, errors.ServiceError):
                yield kind.code, kind.status


def test_every_error_code_is_listed_with_its_status() -> None:
    files = [file for file in (ROOT / "service").rglob("*.py") if file.name != "errors.py"]
    raised = {pair for file in files for pair in codes_of(file)}
    # Not raised as an error: the caller is no longer there to get one.
    raised.add(("client_gone", 499))
    listed = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", section("Error codes"), re.MULTILINE))
    assert {code for code, _ in raised} == set(listed)
    assert [pair for pair in raised if pair[1] is not None and int(listed[pair[0]]) != pair[1]] == []


def test_every_file_of_a_bundle_is_listed() -> None:
    names = {
        manifest.MANIFEST,
        manifest.WEIGHTS,
        manifest.DERIVED,
        manifest.DENSE_WEIGHTS,
        manifest.TOKENIZER,
        manifest.PROBES,
        manifest.PARITY,
    }
    listed = set(re.findall(r"^\| `([\w.]+)` \|", section("The files of a bundle"), re.MULTILINE))
    assert listed == names | {f"{role}.onnx" for role in ("encode", "attend")}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:models|export|service|qkv|bench|tests)/[\w/.]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_the_readme_names_every_folder_of_code() -> None:
    named = set(re.findall(r"^\| `(\w+)/`", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= named


def test_the_changelog_names_every_route() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert [path for path in HOT_ROUTES if path not in text] == []


def test_make_alone_prints_a_line_for_every_target() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert {"serve", "test", "check", "bench", "parity", "clean"} <= set(phony[1].split())
    for target in phony[1].split():
        assert re.search(rf"^make {target} +\S", shown, re.MULTILINE), f"no help for {target}"


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python"
    # A Python that says it is 3.8 and runs the check like any other.
    old.write_text('#!/bin/sh\nexec python3 -c "import sys; sys.version_info = (3, 8, 1); exec(sys.argv[1])" "$2"\n')
    old.chmod(0o755)
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    done = subprocess.run(["make", "serve", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "3.8" in done.stderr
    assert not (tmp_path / ".venv").exists()
