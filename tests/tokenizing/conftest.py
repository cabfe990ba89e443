from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

import pytest

from tests.tokenizing.directories import make_all


class Copy(Protocol):
    """Copies the directory of a class, to be changed."""

    def __call__(self, name: str, folder: str = "model") -> Path: ...


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory of vocabulary files for each tokenizer class, by its name."""
    return make_all(tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture
def copy(directories: dict[str, Path], tmp_path: Path) -> Copy:
    """Copies of them in a place of their own."""

    def copied(name: str, folder: str = "model") -> Path:
        return shutil.copytree(directories[name], tmp_path / folder)

    return copied
