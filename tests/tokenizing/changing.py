"""Changes of a tokenizer's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.tokenizing.directories import write

CONFIG, FILE = "tokenizer_config.json", "tokenizer.json"
Change = Callable[[dict[str, Any]], Any]
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def spaces(content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": content}


def edit(folder: Path, change: Change) -> Path:
    """Change tokenizer.json in place."""
    document = json.loads((folder / FILE).read_text("utf-8"))
    change(document)
    return write(folder, {FILE: document})


def steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    normalizer = document["normalizer"]
    found: list[dict[str, Any]] = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    return found


def configure(folder: Path, **values: Any) -> Path:
    """Set keys of tokenizer_config.json."""
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    return write(folder, {CONFIG: config | values})


def save(folder: Path) -> Path:
    """The same tokenizer as transformers saves it: tokenizer.json alone."""
    saved = folder.parent / "saved"
    AutoTokenizer.from_pretrained(folder).save_pretrained(saved)
    shutil.copy(folder / "config.json", saved)
    return saved
