"""Dense modules behind pooling: the vectors of a text equal those of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Module, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from torch import nn

from export.bundle import export_model
from export.errors import ExportError
from export.texts.read.model import read_model
from service.bundle import read_text_manifest
from service.manifest import DENSE_WEIGHTS
from tests.exporting.bundles import TEXTS, encode

_OLD = "sentence_transformers.models."


def saved(tiny_models: Path, folder: Path, modules: Sequence[Module]) -> SentenceTransformer:
    """A pipeline on a tiny encoder, its Dense modules drawn at random, written as sentence-transformers does."""
    torch.manual_seed(4)
    for module in modules:
        if isinstance(module, Dense):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.3)
    base = Transformer(str(tiny_models / "bert_mean"), max_seq_length=64)
    model = SentenceTransformer(modules=[base, *modules], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return model


def with_old_types(folder: Path) -> None:
    """modules.json as older versions wrote it."""
    file = folder / "modules.json"
    modules = json.loads(file.read_text("utf-8"))
    for module in modules:
        module["type"] = _OLD + module["type"].rpartition(".")[2]
    file.write_text(json.dumps(modules), "utf-8")


PIPELINES: Mapping[str, tuple[list[Module], int]] = {
    "one": ([Pooling(32, "cls"), Dense(32, 24, activation_function=nn.Tanh())], 24),
    "normalised": (
        [Pooling(32, "mean"), Dropout(0.5), Dense(32, 16, bias=False, activation_function=nn.Identity()), Normalize()],
        16,
    ),
    "two after two modes": (
        [
            Pooling(32, ["cls", "max"]),
            Dense(64, 48, activation_function=nn.GELU(), use_residual=True),
            Dense(48, 48, activation_function=nn.Sigmoid(), use_residual=True),
        ],
        48,
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_vectors_equal_sentence_transformers(tiny_models: Path, tmp_path: Path, name: str) -> None:
    modules, dim = PIPELINES[name]
    model = saved(tiny_models, tmp_path / "model", modules)
    exported = export_model(str(tmp_path / "model"), tmp_path / "bundle")
    manifest = read_text_manifest(tmp_path / "bundle")
    assert exported.report.passed
    assert manifest.embedding is not None
    assert (manifest.embedding.dim, manifest.text.token_dim) == (dim, 32)
    assert DENSE_WEIGHTS in manifest.weights
    np.testing.assert_allclose(encode(tmp_path / "bundle", TEXTS), model.encode(list(TEXTS)), atol=1e-5)


def test_older_types_say_the_same(tiny_models: Path, tmp_path: Path) -> None:
    saved(tiny_models, tmp_path / "model", PIPELINES["normalised"][0])
    new = read_model(tmp_path / "model")
    with_old_types(tmp_path / "model")
    old = read_model(tmp_path / "model")
    assert old.dense_configs == new.dense_configs
    assert len(new.dense_configs) == 1
    assert old.normalize


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_in_another_precision(tiny_models: Path, tmp_path: Path, precision: Any) -> None:
    modules, _ = PIPELINES["two after two modes"]
    model = saved(tiny_models, tmp_path / "model", modules)
    assert export_model(str(tmp_path / "model"), tmp_path / "bundle", precision=precision).report.passed
    found, expected = encode(tmp_path / "bundle", TEXTS), model.encode(list(TEXTS))
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.99


def test_other_weights_are_another_space(tiny_models: Path, tmp_path: Path) -> None:
    saved(tiny_models, tmp_path / "model", PIPELINES["one"][0])
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    file = tmp_path / "other" / "2_Dense" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    spaces = set()
    for name in ("model", "other"):
        export_model(str(tmp_path / name), tmp_path / f"{name}_bundle")
        spaces.add(read_text_manifest(tmp_path / f"{name}_bundle").embedding_space)
    assert len(spaces) == 2


@pytest.mark.parametrize(
    ("edits", "parts"),
    [
        ({"in_features": 33}, ("2_Dense/config.json", "in_features", "33", "32 is needed")),
        ({"activation_function": "my.module.Gate"}, ("activation_function", "my.module.Gate")),
        ({"module_input_name": "token_embeddings"}, ("module_input_name", "sentence_embedding is needed")),
        ({"gate": 1}, ("2_Dense/config.json", "gate")),
    ],
)
def test_what_is_wrong_is_named(
    tiny_models: Path, tmp_path: Path, edits: dict[str, Any], parts: tuple[str, ...]
) -> None:
    saved(tiny_models, tmp_path / "model", PIPELINES["one"][0])
    file = tmp_path / "model" / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | edits), "utf-8")
    with pytest.raises(ExportError) as caught:
        read_model(tmp_path / "model")
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


def test_missing_weights_refuse(tiny_models: Path, tmp_path: Path) -> None:
    saved(tiny_models, tmp_path / "model", PIPELINES["one"][0])
    (tmp_path / "model" / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(ExportError, match="2_Dense"):
        read_model(tmp_path / "model")
