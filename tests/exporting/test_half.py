"""Bundles in float16: close to PyTorch in float32 under every mask, finite whatever is masked, refused when damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import export.texts.directory
from export.bundle import export_model
from export.checkpoint import match_checkpoint, read_header
from export.errors import ExportError
from export.texts.graphs.build import build_graph
from export.texts.graphs.kind import GraphKind
from export.texts.precision import derive
from models.config import EncoderConfig
from models.families.bert import BERT
from service.bundle import open_text_bundle, read_text_manifest
from service.graph_spec import Role
from service.manifest import DERIVED, WEIGHTS
from service.parity.checks import pooled_difference, relative_difference
from service.parity.masks import Masks
from service.parity.report import gates_for
from service.runners.torch import TorchRunner
from tests.exporting.bundles import Arrays, run_graph

GATES = gates_for("float16", "CPUExecutionProvider")
ROLES: tuple[Role, ...] = ("encode", "attend")


@pytest.fixture(scope="session")
def reference(half: Path) -> TorchRunner:
    return TorchRunner.open(open_text_bundle(half))


def make_inputs(mask: np.ndarray, seed: int = 0, vocab_size: int = 50) -> Arrays:
    rng = np.random.default_rng(seed)
    attention = mask.astype(np.int64)
    return {
        "input_ids": rng.integers(0, vocab_size, mask.shape),
        "attention_mask": attention,
        "token_type_ids": rng.integers(0, 2, mask.shape),
        "pooling_mask": attention,
    }


def test_the_proof_is_the_whole_battery_at_the_limits_of_float16(half: Path, tiny_bundles: Path) -> None:
    single, manifest = read_text_manifest(tiny_bundles / "bert_mean"), open_text_bundle(half).manifest
    assert (manifest.proof, manifest.precision) == (single.proof, "float16")
    assert {graph.precision for graph in manifest.graphs} == {"float16"}
    assert manifest.embedding_space != single.embedding_space
    for graph, other in zip(manifest.graphs, single.graphs, strict=True):
        assert (graph.masks, graph.inputs, graph.outputs) == ("any", other.inputs, other.outputs)


@settings(max_examples=30)
@given(data=st.data(), batch=st.integers(1, 4), seq=st.integers(1, 20), seed=st.integers(0, 2**16))
def test_both_graphs_are_close_to_pytorch_under_every_mask(
    half: Path, reference: TorchRunner, data: st.DataObject, batch: int, seq: int, seed: int
) -> None:
    flags = st.lists(st.lists(st.booleans(), min_size=seq, max_size=seq), min_size=batch, max_size=batch)
    mask = np.array(data.draw(flags))
    inputs, masks = make_inputs(mask, seed), Masks({"seq": mask}, mask)
    names = ["token_embeddings", "pooled", "attention.0", "attention.1"]
    expected = dict(zip(names, reference.run("attend", inputs, names), strict=True))
    for role in ROLES:
        found = run_graph(half / f"{role}.onnx", inputs)
        assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
        assert all(np.isfinite(values).all() for values in found.values())
        tokens, pooled = found["token_embeddings"], found["pooled"]
        assert (
            relative_difference(tokens, expected["token_embeddings"], mask[:, :, None]).max(initial=0) <= GATES.hidden
        )
        assert pooled_difference(pooled, expected["pooled"], masks).max(initial=0) <= GATES.embedding
        assert (pooled[~mask.any(axis=1)] == 0).all()
        for name in names[2:] if role == "attend" else ():
            rows, wanted = (values[name].transpose(0, 2, 1, 3)[mask] for values in (found, expected))
            np.testing.assert_allclose(rows, wanted, atol=GATES.attention)
            assert (found[name].transpose(0, 3, 1, 2)[~mask] == 0).all()


def test_a_fully_masked_row_harms_no_neighbour(half: Path) -> None:
    mask = np.ones((3, 6), dtype=bool)
    mask[1] = False
    inputs = make_inputs(mask)
    rest = {name: values[[0, 2]] for name, values in inputs.items()}
    for role in ROLES:
        found, expected = (run_graph(half / f"{role}.onnx", given) for given in (inputs, rest))
        for name, values in expected.items():
            np.testing.assert_allclose(found[name][[0, 2]], values, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_no_mask_overflows_beside_scores_near_the_end_of_float16(
    half: Path, tiny_models: Path, tmp_path: Path, sign: int
) -> None:
    """A score of ±28,000 plus float16's own lowest value would be minus infinity, and a row of them NaN."""
    weights = load_file(tiny_models / "bert_mean" / "model.safetensors")
    for name, values in weights.items():
        if name.endswith(("query.bias", "key.bias")):
            weights[name] = np.full_like(values, 100 * (sign if "query" in name else 1))
    save_file(weights, tmp_path / WEIGHTS)
    manifest = read_text_manifest(half)
    config = EncoderConfig.from_dict(manifest.encoder or {})
    tensors = match_checkpoint(BERT, config, read_header(tmp_path / WEIGHTS)).tensors
    derive(tmp_path, tensors, "float16")
    mask = np.array([[True] * 6, [False] * 6, [True, False] * 3])
    for role in ROLES:
        shutil.copy(half / f"{role}.onnx", tmp_path)
        found = run_graph(tmp_path / f"{role}.onnx", make_inputs(mask))
        assert all(np.isfinite(values).all() for values in found.values()), role
        other = make_inputs(mask) | {"input_ids": np.where(mask, make_inputs(mask)["input_ids"], 7)}
        again = run_graph(tmp_path / f"{role}.onnx", other)
        np.testing.assert_array_equal(found["token_embeddings"][mask], again["token_embeddings"][mask])


def test_the_derived_weights_are_the_published_ones_rounded(half: Path, tiny_models: Path) -> None:
    published = load_file(tiny_models / "bert_mean" / "model.safetensors")
    assert (half / WEIGHTS).read_bytes() == (tiny_models / "bert_mean" / "model.safetensors").read_bytes()
    names = BERT.parameters(EncoderConfig.from_dict(read_text_manifest(half).encoder or {}))
    derived = load_file(half / DERIVED)
    assert derived.keys() == names.keys()
    for name, values in derived.items():
        assert values.dtype == np.float16
        np.testing.assert_array_equal(values, published[names[name]].astype(np.float16))


def test_the_graphs_read_the_derived_weights_alone(half: Path) -> None:
    for role in ROLES:
        graph = onnx.load(str(half / f"{role}.onnx"), load_external_data=False).graph
        external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
        places = {entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"}
        assert places == {DERIVED}
        assert {tensor.data_type for tensor in external} == {onnx.TensorProto.FLOAT16}
        products = {node.op_type for node in graph.node} & {"Attention", "Softmax"}
        assert products == ({"Attention"} if role == "encode" else {"Softmax"})


def test_halves_are_rounded_to_the_even_one(tmp_path: Path) -> None:
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.0, -65519.0, 2**-25, 3 * 2**-25], dtype=np.float32)
    save_file({"a": values}, tmp_path / WEIGHTS)
    where = derive(tmp_path, read_header(tmp_path / WEIGHTS), "float16")
    assert where == read_header(tmp_path / DERIVED)
    expected = [1, 1 + 2**-9, 65504, -65504, 0, 2**-23]
    np.testing.assert_array_equal(load_file(tmp_path / DERIVED)["a"], np.array(expected, dtype=np.float16))


def test_two_exports_are_the_same_bytes(half: Path, tiny_models: Path, tmp_path: Path) -> None:
    export_model(str(tiny_models / "bert_mean"), tmp_path / "again", precision="float16")
    for file in half.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name
        assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (65520.0, "the largest value is 65520, float16 ends at 65504"),
        (-1e9, "the largest value is 1e+09, float16 ends at 65504"),
    ],
)
def test_a_weight_that_does_not_fit_is_named(tiny_models: Path, tmp_path: Path, value: float, why: str) -> None:
    source = tmp_path / "model"
    shutil.copytree(tiny_models / "bert_mean", source)
    weights = load_file(source / "model.safetensors")
    name = "encoder.layer.1.attention.self.key.weight"
    weights[name][3, 5] = value
    save_file(weights, source / "model.safetensors")
    with pytest.raises(ExportError) as caught:
        export_model(str(source), tmp_path / "out", precision="float16")
    (fault,) = caught.value.faults
    assert fault == f"layers.1.attention.key.weight: {why}"
    assert not (tmp_path / "out").exists()


def _swap_key_and_value(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        swapped = {"layers.0.attention.key": "layers.0.attention.value"}
        if node.name in swapped:
            node.input[1:] = [f"{swapped[node.name]}.{part}" for part in ("weight", "bias")]


def _scale_twice(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Attention":
            next(attribute for attribute in node.attribute if attribute.name == "scale").f = 0.5


def _forget_the_mask(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Attention":
            del node.input[3:]


@pytest.mark.parametrize("damage", [_swap_key_and_value, _scale_twice, _forget_the_mask])
def test_a_graph_that_computes_something_else_never_becomes_a_bundle(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[onnx.GraphProto], None]
) -> None:
    def build_damaged(*arguments: Any, kind: GraphKind, **options: Any) -> onnx.ModelProto:
        model = build_graph(*arguments, kind=kind, **options)
        damage(model.graph)
        return model

    monkeypatch.setattr(export.texts.directory, "build_graph", build_damaged)
    with pytest.raises(ExportError) as caught:
        export_model(str(tiny_models / "bert_mean"), tmp_path / "out", precision="float16")
    assert any(fault.startswith("random weights: ") for fault in caught.value.faults), str(caught.value)
