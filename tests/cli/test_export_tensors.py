"""`qkv export` and `qkv parity` of presets, of one's own classes and of ready graphs, as commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from service.bundle import read_manifest
from tests.fixtures.command import ROOT, Run

pytestmark = pytest.mark.slow

OWN = ROOT / "tests" / "fixtures" / "own_modules.py"


def test_a_preset_is_exported_listed_and_proved_again(qkv: Run, tmp_path: Path) -> None:
    done = qkv("export", "preset:single-head", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "bundles" / "single-head"
    assert "single-head: float32, proof pytorch" in done.stdout
    assert "Traceback" not in done.stderr
    assert "torchvision" not in done.stderr, "PyTorch's own notices are not the user's"
    for words in (("models", str(out)), ("parity", str(out))):
        done = qkv(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "proved" in done.stdout


def test_an_own_class_with_its_weights_is_exported_and_proved_again(qkv: Run, tmp_path: Path) -> None:
    """From the folder of the file, as a user does it; the bundle says nothing of where that is."""
    shutil.copyfile(OWN, tmp_path / "net.py")
    save_file({"linear.weight": torch.eye(8), "linear.bias": torch.ones(8)}, tmp_path / "net.safetensors")
    words = ("--checkpoint", "net.safetensors", "--kwargs", '{"width": 8}', "--out", "out", "--name", "mine")
    done = qkv("export", "net:Plain", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert (manifest["name"], manifest["module"]) == ("mine", {"source": "net:Plain", "kwargs": '{"width": 8}'})
    lost = qkv("parity", "out", cwd=tmp_path)
    assert (lost.returncode, len(lost.stderr.splitlines())) == (1, 1)
    assert "whose class is not in the bundle: give --module SOURCE" in lost.stderr
    done = qkv("parity", "out", "--module", "net.py:Plain", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved" in done.stdout
    other = qkv("parity", "out", "--module", "net.py:Recurrent", cwd=tmp_path)
    assert other.returncode == 1
    assert "Recurrent(width=8): TypeError" in other.stderr
    wrong = qkv("parity", "out", "--module", "net.onnx", cwd=tmp_path)
    assert "FILE.py:CLASS or PACKAGE.MODULE:CLASS is needed" in wrong.stderr


def test_a_ready_graph_needs_no_torch(qkv: Run, tmp_path: Path) -> None:
    axes: list[str | int | None] = ["batch", "seq", 3]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, axes)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "net.onnx")
    done = qkv("export", "net.onnx", "--out", "out", cwd=tmp_path, blocked=("torch",))
    assert done.returncode == 0, done.stderr
    assert "net: float32, proof invariance" in done.stdout
    assert read_manifest(tmp_path / "out").kind == "tensors"
    again = qkv("parity", "out", cwd=tmp_path)
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)
    assert "no PyTorch module to compare it with" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("preset:",), "preset:: no such preset; there are"),
        (("preset:single",), "  - single-head: Scaled dot-product"),
        (("no.py:Net",), "no.py: no such file"),
        ((f"{OWN}:Nothing",), "no Nothing in it"),
        ((f"{OWN}:Plain", "--kwargs", "{"), "--kwargs: a JSON object is needed"),
        ((f"{OWN}:Plain", "--goldens", "x"), "--goldens: a source of this kind has none"),
        ((f"{OWN}:ShortTable",), "max_sizes.seq: 16 is the largest that works"),
        (("models.attention:SingleHeadAttention",), "qkv has it as preset:single-head"),
    ],
)
def test_a_refusal_is_told_without_a_traceback(qkv: Run, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = qkv("export", *words, "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_torch_one_line_says_what_to_install(qkv: Run, tmp_path: Path) -> None:
    done = qkv("export", "preset:single-head", "--out", str(tmp_path / "out"), blocked=("torch",))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "qkv: preset:single-head: is traced by PyTorch, which is not installed here: pip install 'qkv[torch]'"
    )
