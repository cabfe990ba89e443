"""`truncate_dim` of config_sentence_transformers.json: vectors are cut as sentence-transformers cuts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from export.bundle import export_model
from export.errors import ExportError
from export.texts.directory import embedding_space
from export.texts.read.model import read_model
from service.bundle import read_text_manifest
from tests.exporting.bundles import TEXTS, edited, encode

PROMPTS = "config_sentence_transformers.json"


def with_dense(folder: Path) -> None:
    """A Dense module of 24 numbers behind the pooling."""
    model = SentenceTransformer(str(folder), device="cpu")
    model.append(Dense(32, 24))
    model.save_pretrained(str(folder), create_model_card=False)


@pytest.mark.parametrize("has_dense", [False, True])
def test_vectors_are_cut_behind_pooling_and_dense(tiny_models: Path, tmp_path: Path, has_dense: bool) -> None:
    folder, out = edited(tiny_models / "bert_cls", tmp_path / "model", {}), tmp_path / "out"
    if has_dense:
        with_dense(folder)
    whole = embedding_space(read_model(folder), "float32")
    file = folder / PROMPTS
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | {"truncate_dim": 16}))
    exported = export_model(str(folder), out)
    manifest = read_text_manifest(out)
    assert exported.report.passed
    assert manifest.embedding is not None
    assert manifest.embedding.dim == 16
    assert manifest.embedding_space != whole
    expected = np.asarray(SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS)))
    found = encode(out, TEXTS)
    assert found.shape == expected.shape == (len(TEXTS), 16)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_more_than_there_is_changes_nothing(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_cls", tmp_path / "model", {PROMPTS: {"truncate_dim": 99}})
    model = read_model(folder)
    assert model.embedding_dim == 32
    assert embedding_space(model, "float32") == embedding_space(read_model(tiny_models / "bert_cls"), "float32")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bert_cls", 0, "a whole number from 1 is needed, got 0"),
        ("bert_cls", "16", 'a whole number from 1 is needed, got "16"'),
        ("bert_cls", True, "a whole number from 1 is needed, got true"),
        ("bert_mean", 16, "null is needed beside Normalize"),
    ],
)
def test_what_cannot_be_cut_is_refused(tiny_models: Path, tmp_path: Path, name: str, value: Any, message: str) -> None:
    folder = edited(tiny_models / name, tmp_path / "model", {PROMPTS: {"truncate_dim": value}})
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    [fault] = caught.value.faults
    assert fault.startswith(f"{PROMPTS}: truncate_dim: {message}")
