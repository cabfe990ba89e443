"""From a directory to a bundle: equal to sentence-transformers, the same bytes each time, whole or not there at all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import export.seal
from export.bundle import export_model
from export.errors import ExportError
from export.texts.directory import embedding_space
from export.texts.read.model import read_model
from service.bundle import open_text_bundle, read_text_manifest
from service.parity.probes import load_probes
from tests.exporting.bundles import TEXTS, edited, encode
from tests.exporting.conftest import VARIANTS

FILES = {
    "manifest.json", "weights.safetensors", "encode.onnx", "attend.onnx", "tokenizer.json", "probes.safetensors",
    "parity.json",
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_vectors_equal_sentence_transformers(tiny_models: Path, tiny_bundles: Path, name: str) -> None:
    expected = SentenceTransformer(str(tiny_models / name), device="cpu").encode(list(TEXTS))
    found = encode(tiny_bundles / name, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(axis=1) / norms >= 0.99999).all()


def test_old_and_new_schema_give_one_vector_space(tiny_bundles: Path) -> None:
    for name in ("bert_mean", "bert_cls"):
        old, new = tiny_bundles / name, tiny_bundles / f"{name}_new"
        np.testing.assert_allclose(encode(old, TEXTS), encode(new, TEXTS), atol=1e-6)
        assert read_text_manifest(old).embedding_space == read_text_manifest(new).embedding_space
    mean, cls = (read_text_manifest(tiny_bundles / name) for name in ("bert_mean", "bert_cls"))
    assert mean.embedding_space != cls.embedding_space


@pytest.mark.parametrize("values", [{"hidden_act": "relu"}, {"num_attention_heads": 2}, {"layer_norm_eps": 1e-5}])
def test_another_shape_over_the_same_weights_is_another_space(
    tiny_models: Path, tmp_path: Path, values: dict[str, object]
) -> None:
    source = tiny_models / "bert_mean"
    same, other = edited(source, tmp_path / "same", {}), edited(source, tmp_path / "other", {"config.json": values})
    space = embedding_space(read_model(source), "float32")
    assert embedding_space(read_model(same), "float32") == space
    assert embedding_space(read_model(other), "float32") != space
    assert embedding_space(read_model(source), "float16") != space


def test_a_bundle_whose_tokenizer_the_service_cannot_open_is_refused(
    tiny_models: Path, tmp_path: Path, no_torch: None
) -> None:
    """Any character is encoded, and none of the probes gives a token."""
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "tokenizer.json": {"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}},
    })  # fmt: skip
    with pytest.raises(ExportError, match=r"tokenizer cannot be served: .*gives no token"):
        export_model(str(folder), tmp_path / "out", unproved=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [("a" * 300, "File name too long"), ("file/x", "file is a file"), ("file/x/y", "file is a file")],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path, out: str, message: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=message):
        export_model("no/such/source", tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_done_is_told_stage_by_stage(tiny_models: Path, tmp_path: Path, no_torch: None) -> None:
    told: list[tuple[str, int, int]] = []
    progress = lambda *stage: told.append(stage)  # noqa: E731
    export_model(str(tiny_models / "bert_mean"), tmp_path / "out", unproved=True, progress=progress)
    titles = list(dict.fromkeys(title for title, _, _ in told))
    assert titles == [f"reading {tiny_models / 'bert_mean'}", "building the graphs", "proving invariance"]
    assert told[-1][1] == told[-1][2] > 0


def test_a_bundle_is_whole_and_its_weights_are_the_published_file(tiny_models: Path, tiny_bundles: Path) -> None:
    bundle = tiny_bundles / "bert_mean"
    assert {file.name for file in bundle.iterdir()} == FILES
    manifest = open_text_bundle(bundle).manifest
    assert manifest.files.keys() == FILES - {"manifest.json"}
    assert (bundle / "weights.safetensors").read_bytes() == (tiny_models / "bert_mean/model.safetensors").read_bytes()
    assert not (bundle / "weights.safetensors").is_symlink()
    assert manifest.source["model.safetensors"] == manifest.files["weights.safetensors"]
    assert manifest.source["tokenizer.json"] == manifest.files["tokenizer.json"]
    assert manifest.proof.kind == "pytorch"
    assert manifest.proof.batch_invariant == "proved"
    assert load_probes(bundle / "probes.safetensors").reference == manifest.proof.reference
    assert {file.stat().st_mode & 0o777 for file in bundle.iterdir()} == {0o644}
    assert bundle.stat().st_mode & 0o777 == 0o755


def test_two_exports_are_the_same_bytes(tiny_models: Path, tiny_bundles: Path, tmp_path: Path) -> None:
    export_model(str(tiny_models / "bert_mean"), tmp_path / "again")
    for file in FILES:
        assert (tmp_path / "again" / file).read_bytes() == (tiny_bundles / "bert_mean" / file).read_bytes(), file


def test_nothing_of_this_machine_is_written(tiny_bundles: Path, tiny_models: Path) -> None:
    for file in (tiny_bundles / "bert_mean").iterdir():
        content = file.read_bytes()
        assert str(tiny_models).encode() not in content
        assert str(tiny_bundles).encode() not in content


def test_lower_casing_is_written_and_said(tiny_models: Path, tmp_path: Path, no_torch: None) -> None:
    edits = {"sentence_bert_config.json": {"do_lower_case": True}}
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", edits)
    exported = export_model(str(folder), tmp_path / "out", unproved=True)
    assert any("a Lowercase step was put first" in warning for warning in exported.warnings)
    assert exported.manifest.files["tokenizer.json"] != exported.manifest.source["tokenizer.json"]


def test_a_bundle_that_is_there_is_replaced_only_by_force(tiny_models: Path, tmp_path: Path, no_torch: None) -> None:
    out = tmp_path / "out"
    export_model(str(tiny_models / "bert_mean"), out, unproved=True)
    with pytest.raises(ExportError, match="--force"):
        export_model(str(tiny_models / "bert_cls"), out, unproved=True)
    assert read_text_manifest(out).name == "bert_mean"
    export_model(str(tiny_models / "bert_cls"), out, unproved=True, force=True)
    assert read_text_manifest(out).name == "bert_cls"
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_force_never_replaces_what_is_not_a_bundle(tiny_models: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="replaces bundles only"):
        export_model(str(tiny_models / "bert_mean"), tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_the_old_bundle_and_nothing_else(
    tiny_models: Path, tmp_path: Path, no_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_model(str(tiny_models / "bert_mean"), out, unproved=True)
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(export.seal, "save_probes", fail)
    with pytest.raises(OSError, match="disk full"):
        export_model(str(tiny_models / "bert_cls"), out, unproved=True, force=True)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


_HANGING = """
import sys, time
from pathlib import Path
sys.modules["torch"] = None
import export.bundle, export.seal
def hang(*_):
    print("writing", flush=True)
    time.sleep(60)
export.seal.save_probes = hang
export.bundle.export_model(sys.argv[1], Path(sys.argv[2]), unproved=True)
"""


def test_a_killed_export_leaves_no_bundle_and_the_next_one_clears_up(
    tiny_models: Path, tmp_path: Path, no_torch: None
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", _HANGING, str(tiny_models / "bert_mean"), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 1
    export_model(str(tiny_models / "bert_mean"), out, unproved=True)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    open_text_bundle(out)
