"""What a bundle of a ready graph says of itself, what it was proved by, and which graphs are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import BertModel

from export.bundle import export_model
from export.errors import ExportError
from service.bundle import open_text_bundle
from service.engine.engine import Engine
from service.engine.request import EncodeRequest, Text
from service.errors import RequestError
from service.manifest import TextManifest
from service.settings import Settings
from tests.exporting.bundles import TEXTS, run_graph
from tests.ready.graphs import DIM, FLOAT, INT8, by_hand, reference, saved

FUSED = "onnx/model_O2.onnx"


def manifest_of(path: Path) -> TextManifest:
    return open_text_bundle(path).manifest


async def vectors(path: Path, *texts: str) -> NDArray[np.float32]:
    """What the service answers."""
    engine = Engine.start(open_text_bundle(path), Settings(num_threads=1))
    try:
        result = await engine.encode(EncodeRequest([Text(text) for text in texts], truncate="right"))
    finally:
        await engine.close(1)
    return np.array([item.embedding for item in result.items])


def refusal(source: Path, out: Path, **options: object) -> ExportError:
    with pytest.raises(ExportError) as caught:
        export_model(str(source), out, **options)  # type: ignore[arg-type]
    assert not out.exists()
    return caught.value


def neighbours_change(file: Path) -> float:
    """By how much the hidden states of a row differ when others are beside it."""
    ids = np.random.default_rng(0).integers(5, 100, (4, 9))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    together = run_graph(file, inputs)["last_hidden_state"][:1]
    alone = run_graph(file, {name: values[:1] for name, values in inputs.items()})["last_hidden_state"]
    return float(np.abs(together - alone).max())


def with_other_weights(folder: Path) -> Path:
    torch.manual_seed(9)
    BertModel(BertModel.from_pretrained(folder).config).save_pretrained(folder)
    return folder


async def test_a_float32_file_is_held_to_pytorch(published: Path, tmp_path: Path) -> None:
    exported = export_model(str(published), tmp_path / "out", file=FLOAT)
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.file, manifest.precision, manifest.family, manifest.name) == (FLOAT, "float32", "bert", "bert")
    assert (manifest.proof.kind, manifest.proof.batch_invariant) == ("pytorch", "proved")
    assert manifest.proof.reference.startswith("torch ")
    assert (manifest.encoder, manifest.attention, manifest.text.batching) == (None, None, "padded")
    assert (manifest.text.max_tokens, manifest.text.num_token_types, manifest.text.token_dim) == (64, 2, 32)
    assert manifest.embedding is not None
    assert (manifest.embedding.pooling, manifest.embedding.normalize) == (("mean",), True)
    assert manifest.embedding.pooling_source == "1_Pooling/config.json"
    assert {FLOAT, "tokenizer.json", "1_Pooling/config.json"} <= manifest.source.keys()
    assert INT8 not in manifest.source
    gates = {gate.name for gate in exported.report.gates}
    assert {"token_embeddings", "pooled", "alone", "padded", "permuted", "probes: pooled"} <= gates
    found = await vectors(tmp_path / "out", *TEXTS)
    expected = SentenceTransformer(str(published), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(found, expected, atol=1e-6)


async def test_an_int8_file_of_one_scale_a_tensor_is_served_row_by_row(published: Path, tmp_path: Path) -> None:
    assert neighbours_change(published / INT8) > 1e-4
    assert neighbours_change(published / FLOAT) < 1e-6
    exported = export_model(str(published), tmp_path / "out", file=INT8)
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.file, manifest.precision) == (INT8, "int8")
    assert (manifest.proof.kind, manifest.proof.batch_invariant) == ("pytorch", "by_isolation")
    assert (manifest.batching, manifest.text.batching) == ("alone", "alone")
    gates = {gate.name: gate for gate in exported.report.gates}
    assert gates["texts: direction"].limit == 0.05
    assert gates["repeated"].worst == 0
    expected = SentenceTransformer(str(published), device="cpu").encode(list(TEXTS))
    found = await vectors(tmp_path / "out", *TEXTS)
    assert (found * expected).sum(axis=1).min() >= 0.95
    alone = [await vectors(tmp_path / "out", text) for text in TEXTS]
    np.testing.assert_array_equal(np.concatenate(alone), found)


def test_other_weights_are_refused(published: Path, tmp_path: Path) -> None:
    """A file that is not of the model beside it."""
    source = tmp_path / "bert"
    shutil.copytree(published, source)
    with_other_weights(source)
    failed = refusal(source, tmp_path / "out", file=FLOAT)
    assert "the proof against torch" in failed.message
    assert any(fault.startswith("token_embeddings: ") for fault in failed.faults)
    failed = refusal(source, tmp_path / "out", file=INT8)
    assert any(fault.startswith("texts: direction: ") and "limit 0.05" in fault for fault in failed.faults)
    exported = export_model(str(source), tmp_path / "out", file=FLOAT, unproved=True)
    assert exported.manifest.proof.kind == "invariance"
    assert exported.warnings == (f"{FLOAT}: not compared with PyTorch: --unproved was given",)


async def test_without_weights_it_is_proved_by_itself(without_weights: Path, tmp_path: Path) -> None:
    """And equals what the weights give, which are not there."""
    exported = export_model(str(without_weights), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.file, manifest.proof.kind, exported.warnings) == (FLOAT, "invariance", ())
    assert "token_embeddings" not in {gate.name for gate in exported.report.gates}


async def test_a_graph_and_a_tokenizer_are_enough(folder: Path, tmp_path: Path, table: NDArray[np.float32]) -> None:
    """No config.json: the tokenizer is taken as it is, ids are those of the graph's table, the limit is none's."""
    export_model(str(folder), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.family, manifest.file, manifest.text.vocab_size) == ("onnx", "model.onnx", 104)
    assert (manifest.text.max_tokens, manifest.text.max_tokens_source) == (2048, "default: no file says it")
    assert manifest.embedding is not None
    assert (manifest.embedding.pooling, manifest.embedding.pooling_source) == (("mean",), "default")
    ids = np.array([Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hello world").ids])
    expected = reference(table, ids, np.ones_like(ids)).mean(axis=1)
    np.testing.assert_allclose(await vectors(tmp_path / "out", "hello world"), expected, rtol=1e-5, atol=1e-6)


async def test_what_such_a_graph_does_not_give_is_told(folder: Path, tmp_path: Path) -> None:
    export_model(str(folder), tmp_path / "out")
    engine = Engine.start(open_text_bundle(tmp_path / "out"), Settings(num_threads=1))
    with pytest.raises(RequestError) as caught:
        await engine.encode(EncodeRequest([Text("cat")], include=frozenset({"attention"})))
    await engine.close(1)
    assert (caught.value.code, caught.value.status) == ("attention_unavailable", 400)
    assert "model.onnx" in caught.value.message
    assert "without --file" in caught.value.message


def _positions(model: onnx.ModelProto, rows: int) -> None:
    """A table of positions, by Shape and Range, as exporters write it."""
    values = np.random.default_rng(0).standard_normal((rows, DIM)).astype(np.float32)
    for name, value in (("places", values), ("one", np.array(1)), ("zero", np.array(0))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.graph.node[0].output[0] = "words"
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["seq"]),
        helper.make_node("Range", ["zero", "seq", "one"], ["range"]),
        helper.make_node("Gather", ["places", "range"], ["rows"]),
        helper.make_node("Add", ["words", "rows"], ["pooled"]),
    ]
    for index, node in enumerate(nodes):
        model.graph.node.insert(1 + index, node)


def test_the_longest_text_is_found_out_where_no_file_says_it(
    folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    model = by_hand(table)
    _positions(model, 37)
    saved(model, folder / "model.onnx")
    assert export_model(str(folder), tmp_path / "out").warnings == ()
    text = manifest_of(tmp_path / "out").text
    assert (text.max_tokens, text.max_tokens_source) == (37, "model.onnx: the longest that it takes")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": 50, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    exported = export_model(str(folder), tmp_path / "out", force=True)
    assert exported.warnings == ("tokenizer_config.json: model_max_length says 50, model.onnx takes 37 tokens",)


def _mixing(model: onnx.ModelProto) -> None:
    """The mean of all rows is taken off each."""
    model.graph.node[-1].output[0] = "raw"
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis_0"))
    model.graph.node.append(helper.make_node("ReduceMean", ["raw", "axis_0"], ["centre"]))
    model.graph.node.append(helper.make_node("Max", ["centre", "raw"], ["last_hidden_state"]))


def _maskless(model: onnx.ModelProto) -> None:
    """A graph that takes no mask sees padding as text."""
    del model.graph.input[1]
    model.graph.node[1].CopyFrom(helper.make_node("Mul", ["input_ids", "zero"], ["none"]))
    model.graph.node.insert(2, helper.make_node("Add", ["none", "one"], ["ones"]))
    model.graph.node.insert(3, helper.make_node("Cast", ["ones"], ["pooling.mask"], to=TensorProto.FLOAT))
    for name, value in (("zero", 0), ("one", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))


@pytest.mark.parametrize("edit", [_mixing, _maskless])
async def test_rows_that_depend_on_others_or_on_padding_are_served_alone(
    edit: object, folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    model = by_hand(table)
    edit(model)  # type: ignore[operator]
    saved(model, folder / "model.onnx")
    export_model(str(folder), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.proof.batch_invariant, manifest.batching) == ("by_isolation", "alone")
    both = await vectors(tmp_path / "out", "hello world", "a cat is on the river bank")
    np.testing.assert_array_equal(both[:1], await vectors(tmp_path / "out", "hello world"))


@pytest.mark.parametrize("is_baked", [False, True])
async def test_a_batch_of_one_is_served_alone(
    is_baked: bool, folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    """Fixed by what the file declares, or by a constant inside, as tracing bakes it in."""
    model = by_hand(table, batch="b" if is_baked else 1)
    if is_baked:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, -1, DIM]), "shape"))
        model.graph.node[-1].output[0] = "raw"
        model.graph.node.append(helper.make_node("Reshape", ["raw", "shape"], ["last_hidden_state"]))
    saved(model, folder / "model.onnx")
    export_model(str(folder), tmp_path / "out")
    assert manifest_of(tmp_path / "out").proof.batch_invariant == "by_isolation"
    both = await vectors(tmp_path / "out", "hello world", "a cat is on the river bank")
    np.testing.assert_array_equal(both[:1], await vectors(tmp_path / "out", "hello world"))


def _fixed_inside(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 5, DIM]), "shape"))
    model.graph.node[-1].output[0] = "raw"
    model.graph.node.append(helper.make_node("Reshape", ["raw", "shape"], ["last_hidden_state"]))


@pytest.mark.parametrize(
    ("options", "edit", "words"),
    [
        ({"seq": 128}, None, ["inputs.input_ids: the length is fixed to 128", "inputs.attention_mask: the length"]),
        ({"batch": 8}, None, ["inputs.input_ids: the batch is fixed to 8"]),
        ({}, _fixed_inside, ["its length is fixed: it takes 5 tokens and fails at 9"]),
        ({"opset": 10}, None, ["operators of version 10: 11 or newer is needed"]),
        (
            {"dtypes": {"pixel_values": TensorProto.FLOAT}},
            None,
            ["inputs.pixel_values: only input_ids, attention_mask"],
        ),
        ({"dtypes": {"input_ids": TensorProto.FLOAT}}, None, ["inputs.input_ids: int64 or int32 is needed"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    options: dict[str, object], edit: object, words: list[str], folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    model = by_hand(table, **options)  # type: ignore[arg-type]
    if edit is not None:
        edit(model)  # type: ignore[operator]
    saved(model, folder / "model.onnx")
    told = str(refusal(folder, tmp_path / "out"))
    assert "model.onnx" in told
    for word in words:
        assert word in told


def fused(source: Path, target: Path, *, is_approximate: bool = False) -> Path:
    """A copy of a directory with what ONNX Runtime's optimizer makes of its float32 file."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    options.enable_gelu_approximation = is_approximate
    found = optimizer.optimize_model(str(source / FLOAT), "bert", 4, 32, optimization_options=options, opt_level=0)
    kinds = {node.op_type for node in found.model.graph.node}
    assert kinds >= {"Attention", "EmbedLayerNormalization", "FastGelu" if is_approximate else "BiasGelu"}
    shutil.copytree(source, target)
    found.save_model_to_file(str(target / FUSED))
    return target


def test_fused_operators_are_served_as_they_are(published: Path, tmp_path: Path) -> None:
    """One `Attention` a layer, whose mask is a length: right under padding on the right, which is all there is."""
    export_model(str(fused(published, tmp_path / "bert")), tmp_path / "out", file=FUSED)
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.proof.kind, manifest.proof.batch_invariant) == ("pytorch", "proved")
    assert (manifest.precision, manifest.graph("encode").masks) == ("float32", "right")


def test_an_approximation_is_told_of_where_it_is_not_equal(published: Path, tmp_path: Path) -> None:
    source = with_other_weights(fused(published, tmp_path / "bert", is_approximate=True))
    failed = refusal(source, tmp_path / "out", file=FUSED)
    assert failed.faults[-1] == f"{FUSED}: FastGelu approximates: --unproved serves it without a comparison"
