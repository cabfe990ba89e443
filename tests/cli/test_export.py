"""`qkv export`, `qkv parity` and `qkv models` end to end on a tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from service.bundle import MANIFEST, WEIGHTS, read_manifest, sha256_file
from tests.fixtures.command import Run


def test_export_proves_against_pytorch_and_prints_the_worst_cases(qkv: Run, tiny_models: Path, tmp_path: Path) -> None:
    done = qkv("export", str(tiny_models / "bert_cls"), "--out", str(tmp_path / "out"), "--name", "mine")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert (manifest["name"], manifest["proof"]["kind"]) == ("mine", "pytorch")
    assert "worst case" in done.stdout
    assert "attention" in done.stdout


def test_export_goes_to_bundles_by_default(qkv: Run, tiny_models: Path, tmp_path: Path) -> None:
    words = ("export", str(tiny_models / "bert_mean"), "--unproved")
    assert qkv(*words, cwd=tmp_path, blocked=("torch",)).returncode == 0
    assert (tmp_path / "bundles" / "bert_mean" / "manifest.json").is_file()
    again = qkv(*words, cwd=tmp_path, blocked=("torch",))
    assert again.returncode == 1
    assert "bundles/bert_mean" in again.stderr
    assert qkv(*words, "--force", cwd=tmp_path, blocked=("torch",)).returncode == 0


def test_export_of_a_bad_source_tells_every_fault_without_a_traceback(
    qkv: Run, tiny_models: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny_models / "bert_mean_new", source)
    pooling = source / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"pooling_mode": "banana"}))
    (source / "tokenizer.json").write_text("{")
    done = qkv("export", str(source), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "banana" in done.stderr
    assert "tokenizer.json" in done.stderr
    assert not (tmp_path / "out").exists()


def test_export_without_onnx_says_what_to_install(qkv: Run, tmp_path: Path) -> None:
    done = qkv("export", str(tmp_path), blocked=("onnx",))
    assert done.returncode == 1
    assert "qkv[export]" in done.stderr


def test_parity_passes_and_names_the_worst_case_of_each_gate(qkv: Run, tiny_bundle: Path) -> None:
    done = qkv("parity", str(tiny_bundle))
    assert done.returncode == 0, done.stdout + done.stderr
    for gate in ("token_embeddings", "pooled", "attention", "alone", "padded", "permuted"):
        assert gate in done.stdout
    assert "proved" in done.stdout


def test_parity_fails_on_weights_that_were_changed_and_sealed_again(
    qkv: Run, tiny_bundle: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(tiny_bundle, changed)
    weights = load_file(changed / WEIGHTS)
    (name,) = [name for name in weights if name.endswith("word_embeddings.weight")]
    # Rewritten in place: the graphs point at byte offsets of this file.
    content, values = (changed / WEIGHTS).read_bytes(), weights[name]
    assert content.count(values.tobytes()) == 1
    (changed / WEIGHTS).write_bytes(content.replace(values.tobytes(), (values * np.float32(1.5)).tobytes()))
    manifest = read_manifest(changed)
    files = manifest.files | {WEIGHTS: sha256_file(changed / WEIGHTS)}
    (changed / MANIFEST).write_bytes(manifest.model_copy(update={"files": files}).sealed().to_bytes())
    assert "verified" in qkv("models", str(changed)).stdout, "the seal must be whole: only the values are wrong"
    done = qkv("parity", str(changed))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "gates failed" in done.stdout
    assert "Traceback" not in done.stderr


def test_parity_without_torch_says_what_to_install(qkv: Run, tiny_bundle: Path) -> None:
    done = qkv("parity", str(tiny_bundle), blocked=("torch",))
    assert done.returncode == 1
    assert done.stderr.strip() == "qkv: parity compares with PyTorch, which is not installed: pip install 'qkv[torch]'"


def test_models_lists_what_is_whole(qkv: Run, tiny_bundle: Path) -> None:
    done = qkv("models", str(tiny_bundle.parent))
    assert done.returncode == 0
    for word in ("bert_mean", "bert", "32", "64", "float32", "pytorch", "verified"):
        assert word in done.stdout


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json", "encode.onnx", "weights.safetensors"])
def test_models_shows_the_fault_of_a_changed_file(qkv: Run, tiny_bundle: Path, tmp_path: Path, name: str) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(tiny_bundle, changed)
    content = bytearray((changed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (changed / name).write_bytes(content)
    done = qkv("models", str(changed))
    assert done.returncode == 1
    assert "verified" not in done.stdout
    assert name in done.stdout.replace("\n", "")


def test_models_lists_a_broken_bundle_beside_a_good_one(qkv: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    for name in ("broken", "good"):
        shutil.copytree(tiny_bundle, tmp_path / name)
    (tmp_path / "broken" / "tokenizer.json").unlink()
    done = qkv("models", str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.count("verified") == 1
    assert "tokenizer.json" in done.stdout
    assert "missing" in done.stdout


def test_models_of_an_empty_directory(qkv: Run, tmp_path: Path) -> None:
    done = qkv("models", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("no bundles in")
