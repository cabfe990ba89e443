"""`qkv export`, `qkv parity` and `qkv models` end to end on a tiny model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from safetensors.numpy import load_file

from service.bundle import read_manifest, sha256_file
from service.manifest import MANIFEST, WEIGHTS
from tests.fixtures.command import ROOT, Run


def test_export_proves_against_pytorch_and_prints_the_worst_cases(qkv: Run, tiny_models: Path, tmp_path: Path) -> None:
    done = qkv("export", str(tiny_models / "bert_cls"), "--out", str(tmp_path / "out"), "--name", "mine")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert (manifest["name"], manifest["proof"]["kind"]) == ("mine", "pytorch")
    assert "worst case" in done.stdout
    assert "attention" in done.stdout


@pytest.mark.parametrize(("word", "precision"), [("fp32", "float32"), ("fp16", "float16")])
def test_a_precision_has_a_short_name(qkv: Run, tiny_models: Path, tmp_path: Path, word: str, precision: str) -> None:
    done = qkv("export", str(tiny_models / "bert_mean"), "--precision", word, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert f"bert_mean: {precision}, proof pytorch" in done.stdout


def test_float16_is_exported_listed_and_proved_again(qkv: Run, tiny_models: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    done = qkv("export", str(tiny_models / "bert_mean"), "--precision", "float16", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "bert_mean: float16, proof pytorch" in done.stdout
    listed = qkv("models", out)
    assert listed.returncode == 0, listed.stdout
    assert "float16" in listed.stdout
    assert "verified" in listed.stdout
    again = qkv("parity", out)
    assert again.returncode == 0, again.stdout
    assert "5.0e-03" in again.stdout, "the limits of float16"


def test_a_precision_that_is_not_there_is_refused(qkv: Run, tiny_models: Path, tmp_path: Path) -> None:
    done = qkv("export", str(tiny_models / "bert_mean"), "--precision", "int4", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "float16" in done.stderr
    assert not (tmp_path / "out").exists()


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


def test_export_tells_its_stages_where_nobody_watches(qkv: Run, tiny_models: Path, tmp_path: Path) -> None:
    source = str(tiny_models / "bert_mean")
    done = qkv("export", source, "--out", str(tmp_path / "out"), "--unproved", blocked=("torch",))
    *lines, last = done.stderr.splitlines()
    assert lines == [f"reading {source}", "building the graphs"]
    assert re.fullmatch(r"proving invariance: [1-9][0-9]* cases", last)


def test_export_of_a_directory_whose_name_is_not_utf_8_needs_another_name(
    qkv: Run, tiny_models: Path, tmp_path: Path
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    shutil.copytree(tiny_models / "bert_mean", odd)
    done = qkv("export", str(odd), "--out", str(tmp_path / "out"), blocked=("torch",))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "--name" in done.stderr
    words = ("--name", "mine", "--unproved")
    done = qkv("export", str(odd), "--out", str(odd / "out"), *words, blocked=("torch",))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "not UTF-8" in done.stderr
    done = qkv("export", str(odd), "--out", str(tmp_path / "out"), *words, blocked=("torch",))
    assert done.returncode == 0, done.stderr
    with TemporaryDirectory() as short:  # which no table wraps
        copied = shutil.copytree(tmp_path / "out", os.fsdecode(os.fsencode(short) + b"/\xff/out"))
        for locale in ("C", "C.UTF-8"):
            done = qkv("models", str(copied), LC_ALL=locale)
            assert done.returncode == 0, done.stderr
            assert "\\udcff" in done.stdout


@pytest.mark.parametrize("out", ["a" * 300, "file/x"])
def test_export_to_a_place_that_cannot_be_is_one_line(qkv: Run, tiny_models: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    done = qkv("export", str(tiny_models / "bert_mean"), "--out", str(tmp_path / out))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "nothing can be written there" in done.stderr


def test_a_full_disk_is_one_line(qkv: Run, tiny_models: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for it."""
    words = (str(tiny_models / "bert_mean"), "--out", str(tmp_path / "out"), "--unproved")
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); from qkv.__main__ import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", limit, "export", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


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
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in ("PyTorch", "pip install torch", ".venv-dev"))


@pytest.mark.parametrize("blocked", [(), ("torch",)])
def test_parity_of_no_bundle_names_the_path(qkv: Run, tmp_path: Path, blocked: tuple[str, ...]) -> None:
    done = qkv("parity", str(tmp_path / "nope"), blocked=blocked)
    assert done.returncode == 1
    assert done.stderr.strip() == f"qkv: {tmp_path / 'nope'}: no manifest.json: not a bundle"


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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nope", "nope: no such directory"),
        ("notes.txt", "notes.txt: not a directory"),
        (".", "no manifest.json, and no directory in it has one"),
    ],
)
def test_models_of_what_is_no_bundle_is_an_error(qkv: Run, tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "notes.txt").touch()
    done = qkv("models", path, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert message in done.stderr


def test_models_of_an_empty_directory(qkv: Run, tmp_path: Path) -> None:
    done = qkv("models", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("no bundles in")
