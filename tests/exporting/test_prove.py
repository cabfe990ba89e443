"""The proof: what it is called, and that a graph which computes something else never becomes a bundle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

import export.texts.directory
from export.bundle import export_model
from export.checkpoint import match_checkpoint, read_header
from export.errors import ExportError
from export.prove import held_closer
from export.texts.graphs.build import build_graph
from export.texts.scramble import scramble_bundle
from models.config import EncoderConfig
from models.families.bert import BERT
from models.families.parameters import parameter_shapes
from service.bundle import open_text_bundle
from service.engine.engine import Engine
from service.parity.probes import load_probes
from service.parity.report import GateResult, ParityReport
from service.runners.base import Array
from service.runners.ort import OrtRunner
from service.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def goldens(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Goldens of the tiny encoder, made by the kept script."""
    out = tmp_path_factory.mktemp("goldens") / "tiny.safetensors"
    command = [sys.executable, str(ROOT / "tools" / "make_goldens.py"), str(tiny_models / "bert_mean"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_torch_proves_on_published_and_random_weights(tiny_bundles: Path) -> None:
    report = ParityReport.model_validate_json((tiny_bundles / "bert_mean" / "parity.json").read_bytes())
    names = {gate.name for gate in report.gates}
    assert {"token_embeddings", "attention", "alone", "random weights: attention", "probes: pooled"} <= names
    assert report.passed
    assert report.reference.startswith("torch ")


def test_goldens_prove_without_torch(tiny_models: Path, tmp_path: Path, goldens: Path, no_torch: None) -> None:
    exported = export_model(str(tiny_models / "bert_mean"), tmp_path / "out", goldens=goldens)
    assert exported.manifest.proof.kind == "golden"
    assert exported.manifest.proof.reference.startswith("transformers ")
    names = {gate.name for gate in exported.report.gates}
    assert {"goldens: token_embeddings", "goldens: attention", "alone", "padded", "permuted", "roles"} <= names
    # A graph compared with itself shows nothing of these.
    assert not {"token_embeddings", "pooled", "pooled_raw", "cosine", "attention"} & names
    stored, given = load_probes(tmp_path / "out" / "probes.safetensors"), load_probes(goldens)
    for found, expected in zip(stored.cases, given.cases, strict=True):
        np.testing.assert_equal(dict(found.outputs), dict(expected.outputs))


def test_goldens_are_checked_beside_torch(tiny_models: Path, tmp_path: Path, goldens: Path) -> None:
    exported = export_model(str(tiny_models / "bert_mean"), tmp_path / "out", goldens=goldens)
    assert exported.manifest.proof.kind == "pytorch"
    assert "goldens: attention" in {gate.name for gate in exported.report.gates}


def test_goldens_of_other_weights_are_refused(tiny_models: Path, tmp_path: Path, goldens: Path) -> None:
    with pytest.raises(ExportError, match="weights_sha256"):
        export_model(str(tiny_models / "xenc"), tmp_path / "out", goldens=goldens)
    assert not (tmp_path / "out").exists()


def test_goldens_of_another_pooling_are_refused(tiny_models: Path, tmp_path: Path, goldens: Path) -> None:
    """The same weights: only the pooling of the directory differs."""
    model = shutil.copytree(tiny_models / "bert_mean", tmp_path / "model")
    file = model / "1_Pooling" / "config.json"
    config = {key: value for key, value in json.loads(file.read_text()).items() if not key.startswith("pooling_mode")}
    file.write_text(json.dumps(config | {"pooling_mode": ["cls", "mean_sqrt_len_tokens"]}))
    with pytest.raises(ExportError, match="pooling is mean, the model has cls,mean_sqrt_len") as caught:
        export_model(str(model), tmp_path / "out", goldens=goldens)
    assert "weights_sha256" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_goldens_without_a_pooling_are_refused(tiny_models: Path, tmp_path: Path, goldens: Path) -> None:
    metadata = {key: value for key, value in load_probes(goldens).metadata.items() if key != "pooling"}
    save_file(load_file(goldens), tmp_path / "old.safetensors", metadata=metadata)
    with pytest.raises(ExportError, match="pooling is None, the model has mean"):
        export_model(str(tiny_models / "bert_mean"), tmp_path / "out", goldens=tmp_path / "old.safetensors")


def test_the_battery_runs_lone_calls_and_calls_under_load(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every graph both ways, batches and single rows."""
    run, seen = OrtRunner.run, set()

    def spy(
        self: OrtRunner, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        seen.add((role, len(inputs["input_ids"]) > 1, is_alone))
        return run(self, role, inputs, outputs, is_alone=is_alone)

    monkeypatch.setattr(OrtRunner, "run", spy)
    export_model(str(tiny_models / "bert_mean"), tmp_path / "out")
    assert seen == set(product(("encode", "attend"), (False, True), (False, True)))


@pytest.mark.parametrize("broken", [False, True])
def test_a_fault_of_one_session_is_found(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    run = OrtRunner.run

    def spoil(
        self: OrtRunner, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        found = run(self, role, inputs, outputs, is_alone=is_alone)
        return [values * np.float32(1.001) for values in found] if is_alone == broken else found

    monkeypatch.setattr(OrtRunner, "run", spoil)
    with pytest.raises(ExportError) as caught:
        export_model(str(tiny_models / "bert_mean"), tmp_path / "out")
    assert {"pooled_raw", "roles"} <= {fault.split(":")[0] for fault in caught.value.faults}


def test_wrong_goldens_fail_by_gate_and_case(tiny_models: Path, tmp_path: Path, goldens: Path, no_torch: None) -> None:
    probes = load_probes(goldens)
    tensors = load_file(goldens)
    tensors["1.output.attention.0"][:, [0, 1]] = tensors["1.output.attention.0"][:, [1, 0]]
    tensors["0.output.pooled"] = -tensors["0.output.pooled"]
    save_file(tensors, tmp_path / "wrong.safetensors", metadata=dict(probes.metadata))
    with pytest.raises(ExportError) as caught:
        export_model(str(tiny_models / "bert_mean"), tmp_path / "out", goldens=tmp_path / "wrong.safetensors")
    text = str(caught.value)
    assert "goldens: attention" in text
    assert "probe 1" in text
    assert "goldens: pooled" in text
    assert not (tmp_path / "out").exists()


def test_nothing_to_prove_with_says_what_would_do(tiny_models: Path, tmp_path: Path, no_torch: None) -> None:
    with pytest.raises(ExportError) as caught:
        export_model(str(tiny_models / "bert_mean"), tmp_path / "out")
    for word in ("pip install torch", ".venv-dev", "--unproved; qkv export takes --goldens"):  # qkv serve builds too
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()
    exported = export_model(str(tiny_models / "bert_mean"), tmp_path / "out", unproved=True)
    assert exported.manifest.proof.kind == "invariance"
    assert exported.manifest.proof.reference == "the graphs themselves"
    assert {"alone", "padded", "permuted", "roles"} <= {gate.name for gate in exported.report.gates}
    assert open_text_bundle(tmp_path / "out").manifest == exported.manifest


def test_the_service_warns_of_a_bundle_that_nothing_compares_with_pytorch(
    tiny_models: Path, tiny_bundles: Path, tmp_path: Path, no_torch: None, caplog: pytest.LogCaptureFixture
) -> None:
    export_model(str(tiny_models / "bert_mean"), tmp_path / "out", unproved=True)
    for path, is_warned in ((tmp_path / "out", True), (tiny_bundles / "bert_mean", False)):
        caplog.clear()
        Engine.start(open_text_bundle(path), Settings(num_threads=1))
        assert ("nothing shows that it equals its PyTorch model" in caplog.text) == is_warned


def _drop_the_scale(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.name == "layers.1.attention.query")
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("transB", 1))


def _swap_key_and_value(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.name == "layers.0.attention.key")
    node.input[1], node.input[2] = "layers.0.attention.value.weight", "layers.0.attention.value.bias"


def _forget_the_mask(graph: onnx.GraphProto) -> None:
    lowest = next(tensor for tensor in graph.initializer if tensor.name == "lowest")
    lowest.CopyFrom(numpy_helper.from_array(np.array(0.0, dtype=np.float32), "lowest"))


def _miscount_positions(graph: onnx.GraphProto) -> None:
    first = next(tensor for tensor in graph.initializer if tensor.name == "first_position")
    first.CopyFrom(numpy_helper.from_array(np.array([-1]), "first_position"))


@pytest.mark.parametrize("damage", [_drop_the_scale, _swap_key_and_value, _forget_the_mask, _miscount_positions])
def test_a_graph_that_computes_something_else_never_becomes_a_bundle(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[onnx.GraphProto], None]
) -> None:
    def build_damaged(*arguments: Any, **options: Any) -> onnx.ModelProto:
        model = build_graph(*arguments, **options)
        damage(model.graph)
        return model

    monkeypatch.setattr(export.texts.directory, "build_graph", build_damaged)
    with pytest.raises(ExportError) as caught:
        export_model(str(tiny_models / "bert_mean"), tmp_path / "out")
    assert any(fault.startswith("random weights: ") for fault in caught.value.faults), str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_random_weights_have_the_published_layout(tiny_bundles: Path, tmp_path: Path) -> None:
    bundle = open_text_bundle(tiny_bundles / "bert_mean")
    config = EncoderConfig.from_dict(bundle.manifest.encoder or {})
    stored = read_header(bundle.file("weights.safetensors"))
    scrambled = scramble_bundle(bundle, match_checkpoint(BERT, config, stored).tensors, tmp_path)
    assert read_header(scrambled.file("weights.safetensors")) == stored
    values = load_file(scrambled.file("weights.safetensors"))
    names = BERT.parameters(config)
    for name, shape in parameter_shapes(config).items():
        tensor = values[names[name]]
        assert tensor.shape == shape
        assert tensor.std() > 0, name
    assert abs(values[names["layers.0.attention_norm.weight"]].mean() - 1) < 0.2


def test_weights_of_a_preset_are_held_closer() -> None:
    gates = [
        GateResult(name=name, limit=3e-5, worst=worst, case="", num_checks=1, passed=True)
        for name, worst in (("attention", 2e-5), ("attention_invariance", 1e-5), ("features", 2e-5))
    ]
    report = ParityReport(reference="", form="quick", num_cases=1, gates=tuple(gates), environment={})
    found = {gate.name: (gate.limit, gate.passed) for gate in held_closer(report).gates}
    assert found == {"attention": (1e-5, False), "attention_invariance": (1e-5, True), "features": (3e-5, True)}
