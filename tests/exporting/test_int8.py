"""Bundles in int8: one step a token and one a column, the same answer in any company, near to float32."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from export.bundle import export_model
from export.errors import ExportError
from export.texts.precision import quantise
from models.config import EncoderConfig
from models.families.bert import BERT
from service.bundle import open_bundle, read_text_manifest
from service.engine.engine import Engine
from service.errors import StartupError
from service.graph_spec import Precision
from service.manifest import DERIVED, WEIGHTS
from service.parity.report import ParityReport
from service.runners.cpus import may_saturate
from service.runners.ort import OrtRunner
from service.settings import Settings
from tests.exporting.bundles import TEXTS, encode, run_graph
from tests.exporting.test_half import make_inputs


def cosines(found: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    found_cosines: NDArray[np.float32] = (found * expected).sum(axis=1) / lengths
    return found_cosines


def test_the_proof_is_the_whole_battery_and_the_row_alone_is_held_tightly(whole: Path, tiny_bundles: Path) -> None:
    single, manifest = read_text_manifest(tiny_bundles / "bert_mean"), read_text_manifest(whole)
    assert (manifest.proof, manifest.precision) == (single.proof, "int8")
    assert manifest.embedding_space != single.embedding_space
    report = ParityReport.model_validate_json((whole / "parity.json").read_bytes())
    limits = {gate.name: gate.limit for gate in report.gates}
    assert {name: limits[name] for name in ("alone", "padded", "permuted")} == dict.fromkeys(
        ("alone", "padded", "permuted"), 1e-6
    )
    assert limits["cosine"] == 0.05
    assert cosines(encode(whole, TEXTS), encode(tiny_bundles / "bert_mean", TEXTS)).min() >= 0.95


@settings(max_examples=40)
@given(batch=st.integers(1, 9), seq=st.integers(1, 24), seed=st.integers(0, 2**16), data=st.data())
def test_no_neighbour_changes_a_row(whole: Path, batch: int, seq: int, seed: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, seq), min_size=batch, max_size=batch))
    mask = np.arange(seq) < np.array(lengths)[:, None]
    inputs = make_inputs(mask, seed)
    together = run_graph(whole / "encode.onnx", inputs)["pooled"]
    for row, length in enumerate(lengths):
        own = {name: values[row : row + 1, :length] for name, values in inputs.items()}
        np.testing.assert_allclose(run_graph(whole / "encode.onnx", own)["pooled"][0], together[row], atol=1e-6)


def test_weights_are_whole_numbers_of_steps_beside_the_published_file(whole: Path, tiny_models: Path) -> None:
    published = load_file(tiny_models / "bert_mean" / "model.safetensors")
    assert (whole / WEIGHTS).read_bytes() == (tiny_models / "bert_mean" / "model.safetensors").read_bytes()
    names = BERT.parameters(EncoderConfig.from_dict(read_text_manifest(whole).encoder or {}))
    maps = [name for name in names if name.startswith("layers.") and name.endswith(".weight") and "norm" not in name]
    derived = load_file(whole / DERIVED)
    assert derived.keys() == {f"{name}.{part}" for name in maps for part in ("int8", "steps")}
    assert len(maps) == 12
    for name in maps:
        expected, steps = published[names[name]], derived[f"{name}.steps"]
        found = derived[f"{name}.int8"].T * steps[:, None]
        assert (np.abs(found - expected) <= steps[:, None] * (0.5 + 1e-5)).all()


def test_the_graphs_multiply_whole_numbers_in_every_layer(whole: Path) -> None:
    for role in ("encode", "attend"):
        nodes = onnx.load(str(whole / f"{role}.onnx"), load_external_data=False).graph.node
        ops = [node.op_type for node in nodes]
        # Query, key and value share what they multiply.
        assert (ops.count("MatMulIntegerToFloat"), ops.count("QuantizeLinear"), ops.count("Gemm")) == (12, 8, 0)
        assert "DynamicQuantizeLinear" not in ops


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=st.floats(-1e6, 1e6, width=32))
)
def test_a_weight_is_at_most_half_a_step_off(weights: NDArray[np.float32]) -> None:
    whole, steps = quantise(weights)
    assert whole.shape == weights.shape[::-1]
    assert np.abs(whole.astype(int)).max() <= 127
    limit = np.maximum(steps * np.float32(0.5001), np.finfo(np.float32).tiny)
    assert (np.abs(whole.T * steps[:, None] - weights) <= limit[:, None]).all()
    assert (steps > 0).all()


def test_zeros_stay_zeros() -> None:
    whole, steps = quantise(np.zeros((2, 3), np.float32))
    assert not whole.any()
    assert steps.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("value", "precision", "held"),
    [
        (np.nan, "float32", "NaN"),
        (np.nan, "int8", "NaN"),
        (np.nan, "float16", "NaN"),
        (-np.inf, "float32", "an infinite number"),
    ],
)
def test_weights_that_are_no_numbers_are_refused_by_name(
    tiny_models: Path, tmp_path: Path, value: float, precision: Precision, held: str
) -> None:
    source = tmp_path / "bad"
    shutil.copytree(tiny_models / "bert_mean", source)
    weights = load_file(source / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][0, 0] = value
    save_file(weights, source / "model.safetensors")
    with pytest.raises(ExportError) as error:
        export_model(str(source), tmp_path / "out", precision=precision)
    assert error.value.faults == (f"model.safetensors: encoder.layer.1.output.dense.weight: holds {held}",)


def test_a_module_is_not_made_int8(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="got int8: it is for encoders of text"):
        export_model("preset:single-head", tmp_path / "out", precision="int8")


def test_it_runs_on_the_cpu_only(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.runners.ort.check_cuda", lambda _device_id: None)
    with pytest.raises(StartupError, match="int8 runs on the CPU only"):
        OrtRunner.open(open_bundle(whole), device="cuda")
    assert OrtRunner.open(open_bundle(whole), device="auto", num_threads=1).info().provider == "CPUExecutionProvider"


def test_its_calls_are_smaller_unless_a_setting_says_otherwise(whole: Path, tiny_bundles: Path) -> None:
    def size(path: Path, settings: Settings) -> int:
        return Engine.start(open_bundle(path), settings).max_call_tokens

    assert size(whole, Settings(num_threads=1)) == 192
    assert size(tiny_bundles / "bert_mean", Settings(num_threads=1)) == 256
    assert size(whole, Settings(num_threads=1, max_call_tokens=2048)) == 2048


def test_a_processor_whose_sums_saturate_is_told_of(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for flags, expected in (("flags\t: avx2 fma", True), ("flags\t: avx2 avx512_vnni", False), ("Features : x", False)):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
        assert may_saturate(tmp_path / "cpuinfo") is expected
    assert may_saturate(tmp_path / "none") is False
    monkeypatch.setattr("service.engine.engine.may_saturate", lambda: True)
    with caplog.at_level(logging.WARNING):
        Engine.start(open_bundle(whole), Settings(num_threads=1))
    assert "no VNNI" in caplog.text
