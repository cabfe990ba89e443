"""A ready graph of the hub: fetched with the numbers beside it, and no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from export.errors import ExportError
from export.progress import Progress, quiet
from export.texts.read.hub import HubId, Snapshot, needed_files, numbers_beside, ready_file
from export.texts.read.locate import PUBLISHED, locate
from export.texts.ready.choose import Choice
from service.bundle import open_text_bundle
from tests.fixtures.command import run_qkv
from tests.fixtures.hub import COMMIT, hub_of, repo_of
from tests.ready.graphs import FLOAT, HALF, INT8, by_hand

DATA = f"{FLOAT}_data"
FILES = ["config.json", FLOAT, DATA, HALF, INT8, "1_Pooling/config.json"]


@pytest.mark.parametrize(
    ("more", "folders", "file", "found"),
    [
        ([], [], None, FLOAT),
        (["model.safetensors"], [], None, None),
        (["model.safetensors"], [], INT8, INT8),
        (["model.safetensors.index.json", "model-00001-of-00002.safetensors"], [], None, None),
        (["1_Dense/model.safetensors"], ["", "1_Dense/"], None, FLOAT),
        (["0_Transformer/onnx/model.onnx"], ["0_Transformer/"], None, "0_Transformer/onnx/model.onnx"),
    ],
)
def test_which_file(more: list[str], folders: list[str], file: str | None, found: str | None) -> None:
    assert ready_file("org/name", [*FILES, *more], folders, file) == found


def test_no_onnx_file_is_fetched_by_its_folder_and_weights_only_where_they_are_of_use() -> None:
    files = [*FILES, "model.safetensors", "tokenizer.json"]
    settings = ["1_Pooling/config.json", "config.json", "tokenizer.json"]
    assert needed_files(files, ["", "1_Pooling/"]) == sorted([*settings, "model.safetensors"])
    assert needed_files(files, ["", "1_Pooling/"], has_weights=False) == settings


@pytest.mark.parametrize("name", ["model.onnx_data", "weights.bin", "part/one"])
def test_numbers_beside_are_those_that_the_graph_names(name: str, tmp_path: Path, table: NDArray[np.float32]) -> None:
    (tmp_path / "onnx" / "part").mkdir(parents=True)
    onnx.save_model(by_hand(table), str(tmp_path / FLOAT), save_as_external_data=True, location=name, size_threshold=0)
    files = [*FILES, "onnx/weights.bin", "onnx/part/one", f"{FLOAT}_data_of_another"]
    assert numbers_beside(tmp_path, FLOAT, files) == [f"onnx/{name}"]
    assert numbers_beside(tmp_path, FLOAT, [FLOAT]) == []


def test_a_file_that_the_repository_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(ExportError, match=f"org/name: --file onnx/x.onnx: ONNX files there: {FLOAT}, {HALF}, {INT8}"):
        ready_file("org/name", FILES, [], "onnx/x.onnx")
    with pytest.raises(ExportError, match=f"org/name: no weights, and neither .*: ONNX files there: {HALF}"):
        ready_file("org/name", ["config.json", HALF], [], None)


def test_a_repository_of_ready_graphs_becomes_a_bundle(without_weights: Path, tmp_path: Path) -> None:
    """Its numbers lie beside it, under a name of their own; a file of like name has nothing to do with it."""
    source = tmp_path / "ready"
    shutil.copytree(without_weights, source)
    model = onnx.load(str(without_weights / FLOAT))
    onnx.save_model(model, str(source / FLOAT), save_as_external_data=True, location="numbers", size_threshold=0)
    with hub_of({"org/ready": repo_of(source, {DATA: b"of no use"})}) as hub:
        done = run_qkv(
            "export", "org/ready", "--out", str(tmp_path / "out"), HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "hf")
        )
        assert done.returncode == 0, done.stderr
        fetched = hub.fetched
    assert len(fetched) == len(set(fetched))
    assert {file for file in fetched if file.startswith("onnx/")} == {FLOAT, "onnx/numbers"}
    manifest = open_text_bundle(tmp_path / "out").manifest
    assert (manifest.name, manifest.file, manifest.source["hub:org/ready"]) == ("ready", FLOAT, COMMIT)
    assert "onnx/numbers" in manifest.source


def test_a_file_that_the_installed_package_lacks_is_asked_of_the_hub(
    minilm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def fetch(hub_id: HubId, tell: Progress, choice: Choice) -> Snapshot:
        asked.append((hub_id.repo, choice.file))
        return Snapshot(Path("snapshot"), COMMIT, is_known=True)

    monkeypatch.setattr("export.texts.read.hub.fetch", fetch)
    ((name, known),) = PUBLISHED.items()
    assert locate(known.hub_id, quiet, Choice(FLOAT)).path == Path("snapshot")
    assert asked == [(known.hub_id, FLOAT)]
    for source, choice in ((known.hub_id, Choice()), (name, Choice(FLOAT))):
        assert locate(source, quiet, choice).path == minilm_dir
    assert len(asked) == 1
