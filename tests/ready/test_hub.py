"""A ready graph of the hub: fetched with the numbers beside it, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.errors import ExportError
from export.texts.read.hub import ready_files
from service.bundle import open_text_bundle
from tests.fixtures.command import run_qkv
from tests.fixtures.hub import COMMIT, hub_of, repo_of
from tests.ready.graphs import FLOAT, HALF, INT8

FILES = ["config.json", FLOAT, f"{FLOAT}_data", HALF, INT8, "1_Pooling/config.json"]


@pytest.mark.parametrize(
    ("more", "folders", "file", "fetched"),
    [
        ([], [], None, [FLOAT, f"{FLOAT}_data"]),
        (["model.safetensors"], [], None, []),
        (["model.safetensors"], [], INT8, [INT8]),
        (["model.safetensors.index.json", "model-00001-of-00002.safetensors"], [], None, []),
        (["1_Dense/model.safetensors"], ["", "1_Dense/"], None, [FLOAT, f"{FLOAT}_data"]),
        (["0_Transformer/onnx/model.onnx"], ["0_Transformer/"], None, ["0_Transformer/onnx/model.onnx"]),
    ],
)
def test_which_files(more: list[str], folders: list[str], file: str | None, fetched: list[str]) -> None:
    assert ready_files("org/name", [*FILES, *more], folders, file) == fetched


def test_a_file_that_the_repository_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(ExportError, match=f"org/name: --file onnx/x.onnx: ONNX files there: {FLOAT}, {HALF}, {INT8}"):
        ready_files("org/name", FILES, [], "onnx/x.onnx")
    with pytest.raises(ExportError, match=f"org/name: no weights, and neither .*: ONNX files there: {HALF}"):
        ready_files("org/name", ["config.json", HALF], [], None)


def test_a_repository_of_ready_graphs_becomes_a_bundle(without_weights: Path, tmp_path: Path) -> None:
    with hub_of({"org/ready": repo_of(without_weights)}) as hub:
        done = run_qkv(
            "export", "org/ready", "--out", str(tmp_path / "out"), HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "hf")
        )
        assert done.returncode == 0, done.stderr
        fetched = set(hub.fetched)
    assert FLOAT in fetched
    assert not fetched & {HALF, INT8}
    manifest = open_text_bundle(tmp_path / "out").manifest
    assert (manifest.name, manifest.file, manifest.source["hub:org/ready"]) == ("ready", FLOAT, COMMIT)
