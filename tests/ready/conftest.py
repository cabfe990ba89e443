"""Model directories with ready ONNX files in them, made once a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import BertModel

from tests.fixtures.layouts import bare
from tests.ready.graphs import DIM, FLOAT, HALF, INT8, by_hand, quantize, saved, trace


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def published(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers directory with weights, and beside them what the hub has: a float32 graph, junk, int8."""
    folder = tmp_path_factory.mktemp("published") / "bert"
    shutil.copytree(tiny_models / "bert_mean", folder)
    trace(BertModel.from_pretrained(folder, attn_implementation="eager"), folder / FLOAT, ["last_hidden_state"])
    content = (folder / FLOAT).read_bytes()
    (folder / HALF).write_bytes(content[: len(content) // 3])
    quantize(folder / FLOAT, folder / INT8)
    return folder


@pytest.fixture(scope="session")
def without_weights(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without weights."""
    return bare(published, tmp_path_factory.mktemp("without") / "bert")


@pytest.fixture(scope="session")
def table() -> NDArray[np.float32]:
    """Vectors of the tiny vocabulary."""
    return np.random.default_rng(3).standard_normal((104, DIM), dtype=np.float32)


@pytest.fixture
def folder(tiny_models: Path, tmp_path: Path, table: NDArray[np.float32]) -> Path:
    """A directory with the graph by hand as `model.onnx`, a tokenizer and no config.json: all that a bundle needs."""
    path = tmp_path / "by_hand"
    path.mkdir()
    shutil.copy(tiny_models / "bert_mean" / "tokenizer.json", path)
    saved(by_hand(table), path / "model.onnx")
    return path
