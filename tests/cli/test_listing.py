"""`qkv models`: which bundles it lists, and in which words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qkv.listing import list_bundles


@pytest.fixture
def bundles(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of one bundle, in the current directory: short paths are not folded."""
    shutil.copytree(tiny_bundle, tmp_path / "b" / "mine")
    monkeypatch.chdir(tmp_path)
    return Path("b")


def test_a_link_to_a_bundle_beside_it_is_not_listed_again(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `default` in an image."""
    (bundles / "default").symlink_to("mine")
    assert list_bundles([bundles])
    shown = capsys.readouterr().out
    assert shown.count("verified") == 1
    assert "b/mine" in shown
    assert list_bundles([bundles / "default"])
    assert "b/default" in capsys.readouterr().out


def test_what_a_bundle_is_for_is_listed(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_bundles([bundles])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("task", "embedding", "32", "float32", "pytorch"))


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json"])
def test_a_fault_names_the_file_and_the_path_stands_in_its_column_alone(
    bundles: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (bundles / "mine" / name).write_text("{}")
    assert not list_bundles([bundles])
    shown = capsys.readouterr().out
    assert name in shown
    assert shown.count("b/mine") == 1
