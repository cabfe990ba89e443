"""A ready graph's files: pointers, links, junk, and numbers that lie beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from export.bundle import export_model
from export.errors import ExportError
from service.bundle import open_text_bundle
from service.manifest import WEIGHTS
from tests.fixtures.hub import LFS_STUB, link_snapshot
from tests.ready.graphs import FLOAT, HALF, by_hand, saved

DATA = "model.onnx_data"


@pytest.fixture
def beside(folder: Path, table: NDArray[np.float32]) -> Path:
    """`folder` with `onnx/model.onnx`, whose numbers lie in `onnx/model.onnx_data`."""
    (folder / "model.onnx").unlink()
    (folder / "onnx").mkdir()
    onnx.save_model(by_hand(table), str(folder / FLOAT), save_as_external_data=True, location=DATA, size_threshold=0)
    assert (folder / "onnx" / DATA).stat().st_size >= table.nbytes
    return folder


def refusal(source: Path, out: Path, **options: str) -> str:
    with pytest.raises(ExportError) as caught:
        export_model(str(source), out, **options)  # type: ignore[arg-type]
    assert not out.exists()
    return str(caught.value)


def test_a_pointer_is_refused_by_name(without_weights: Path, tmp_path: Path) -> None:
    source = tmp_path / "bert"
    shutil.copytree(without_weights, source)
    (source / FLOAT).write_bytes(LFS_STUB)
    told = refusal(source, tmp_path / "out")
    assert FLOAT in told
    assert "a Git LFS pointer, not the file" in told


def test_junk_is_refused_when_it_is_chosen(published: Path, tmp_path: Path) -> None:
    told = refusal(published, tmp_path / "out", file=HALF)
    assert HALF in told
    assert "not an ONNX file, or not all of one" in told


def test_numbers_beside_the_graph_come_along(beside: Path, tmp_path: Path, table: NDArray[np.float32]) -> None:
    export_model(str(beside), tmp_path / "out")
    manifest = open_text_bundle(tmp_path / "out").manifest
    assert (manifest.file, manifest.weights) == (FLOAT, (WEIGHTS,))
    assert {FLOAT, f"onnx/{DATA}"} <= manifest.source.keys()
    (stored,) = load_file(tmp_path / "out" / WEIGHTS).values()
    np.testing.assert_array_equal(stored, table)
    assert not list((tmp_path / "out").glob("*_data"))


def test_a_snapshot_of_the_hubs_cache_is_followed(beside: Path, tmp_path: Path) -> None:
    """Graph and data are links to the same folder, which is not the one that they lie in."""
    snapshot = link_snapshot(beside, tmp_path / "models--org--name")
    export_model(str(snapshot), tmp_path / "out")
    assert open_text_bundle(tmp_path / "out").manifest.name == "name"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", "no such file beside the graph"),
        ("dangling", "no such file beside the graph"),
        ("elsewhere", "no such file beside the graph"),
        ("pointer", "a Git LFS pointer, not the file"),
        ("short", "bytes needed"),
    ],
)
def test_numbers_that_are_not_there_are_refused_by_name(how: str, words: str, beside: Path, tmp_path: Path) -> None:
    data = beside / "onnx" / DATA
    content = data.read_bytes()
    data.unlink()
    (tmp_path / "secret").write_bytes(content)
    match how:
        case "dangling":
            data.symlink_to("gone")
        case "elsewhere":
            data.symlink_to(tmp_path / "secret")
        case "pointer":
            data.write_bytes(LFS_STUB)
        case "short":
            data.write_bytes(content[:100])
    told = refusal(beside, tmp_path / "out")
    assert f"{DATA}: " in told
    assert words in told
    assert len(told.splitlines()) <= 5


def test_the_names_of_files_are_what_is_told_of_a_place(folder: Path, tmp_path: Path) -> None:
    """A graph that ONNX Runtime does not load is told without the place that it was tried in."""
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.node[0].op_type = "Unheard"
    saved(model, folder / "model.onnx")
    told = refusal(folder, tmp_path / "out")
    assert f"{folder / 'model.onnx'}: ONNX Runtime cannot load the graph" in told
    assert ".tmp-" not in told
