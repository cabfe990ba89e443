"""Ready graphs of every task: classifiers, token classifiers, sparse and pooled vectors."""

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
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, BertForSequenceClassification

from export.bundle import export_model
from export.errors import ExportError
from service.bundle import open_text_bundle
from service.engine.engine import Engine
from service.engine.request import EncodeRequest, EncodeResult, Include, Text
from service.errors import RequestError
from service.manifest import TextManifest
from service.settings import Settings
from tests.ready.graphs import DIM, FLOAT, by_hand, reference, saved, trace

TEXTS = ("hello world", "a cat is on the river bank")
NO_DENSE = "a graph that is not built here is served without Dense modules, and not for late interaction"


def ids_of(folder: Path, text: str) -> NDArray[np.int64]:
    """`[1, seq]`"""
    return np.array([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids])


def manifest_of(path: Path) -> TextManifest:
    return open_text_bundle(path).manifest


async def answer(path: Path, *texts: Text, include: Include) -> EncodeResult:
    engine = Engine.start(open_text_bundle(path), Settings(num_threads=1))
    try:
        return await engine.encode(EncodeRequest(list(texts), include=frozenset({include}), truncate="right"))
    finally:
        await engine.close(1)


@pytest.fixture(scope="module")
def classifier(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of three classes that was exported without token types, with its weights."""
    folder = tmp_path_factory.mktemp("classifier") / "cls3"
    shutil.copytree(tiny_models / "cls3", folder)
    model = BertForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    trace(model, folder / FLOAT, ["logits"], has_types=False)
    return folder


async def test_classes_are_those_of_transformers(classifier: Path, tmp_path: Path) -> None:
    export_model(str(classifier), tmp_path / "out", file=FLOAT)
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.task, manifest.proof.kind) == ("sequence_classification", "pytorch")
    assert manifest.head is not None
    assert manifest.head.labels == ("neg", "neu", "pos")
    result = await answer(tmp_path / "out", *map(Text, TEXTS), include="classes")
    model = BertForSequenceClassification.from_pretrained(classifier).train(False)
    tokens = AutoTokenizer.from_pretrained(classifier)(list(TEXTS), padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**tokens).logits.softmax(dim=-1).numpy()
    np.testing.assert_allclose(np.array([item.classes for item in result.items]), expected, atol=1e-6)


async def test_a_pair_is_refused_where_the_graph_has_lost_the_kinds_of_token(classifier: Path, tmp_path: Path) -> None:
    """BERT tells the two texts of a pair apart, this graph does not: its scores would be another model's."""
    export_model(str(classifier), tmp_path / "out", file=FLOAT)
    assert manifest_of(tmp_path / "out").text.num_token_types == 1
    with pytest.raises(RequestError, match="takes no pairs"):
        await answer(tmp_path / "out", Text("hello", "world"), include="classes")


async def test_no_vectors_of_tokens_are_told_of_where_there_are_none(classifier: Path, tmp_path: Path) -> None:
    export_model(str(classifier), tmp_path / "out", file=FLOAT)
    with pytest.raises(RequestError) as caught:
        await answer(tmp_path / "out", Text("hello"), include="outputs")
    assert caught.value.code == "outputs_unavailable"
    assert FLOAT in caught.value.message


def test_another_number_of_labels_is_refused(classifier: Path, tmp_path: Path) -> None:
    source = tmp_path / "cls"
    shutil.copytree(classifier, source)
    config = json.loads((source / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "yes"}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=rf"config\.json: 2 labels, {FLOAT} gives logits of 3"):
        export_model(str(source), tmp_path / "out", file=FLOAT)


@pytest.mark.parametrize(("name", "max_tokens"), [("roberta", 65), ("distil", 64)])
async def test_families_count_positions_by_their_own_rule(
    name: str, max_tokens: int, tiny_models: Path, tmp_path: Path
) -> None:
    """RoBERTa's exports derive them from the ids: of a text, both come to the same.

    Neither is fed the kinds of token that its tokenizer may make.
    """
    source = tmp_path / name
    shutil.copytree(tiny_models / name, source)
    trace(
        AutoModel.from_pretrained(source, attn_implementation="eager"),
        source / FLOAT,
        ["last_hidden_state"],
        has_types=False,
    )
    export_model(str(source), tmp_path / "out", file=FLOAT)
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.proof.kind, manifest.proof.batch_invariant) == ("pytorch", "proved")
    assert manifest.text.max_tokens == max_tokens
    inputs = [spec.name for spec in manifest.graph("encode").inputs]
    assert inputs == ["input_ids", "attention_mask", "pooling_mask"]
    result = await answer(tmp_path / "out", Text("dog " * 600), include="embedding")
    assert result.num_tokens == max_tokens


async def test_inputs_are_given_by_name_in_the_graphs_own_types(
    folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    types = ["token_type_ids", "attention_mask", "position_ids", "input_ids"]
    dtypes = dict(zip(types, [TensorProto.INT64, *[TensorProto.INT32] * 3], strict=True))
    model = by_hand(table, dtypes=dtypes)
    rng = np.random.default_rng(5)
    places, kinds = (rng.standard_normal((rows, DIM), dtype=np.float32) for rows in (40, 2))
    for name, values, index in (("places", places, "position_ids"), ("kinds", kinds, "token_type_ids")):
        model.graph.initializer.append(numpy_helper.from_array(values, name))
        first = model.graph.node[0]
        first.output[0], made = f"{name}.before", first.output[0]
        model.graph.node.insert(1, helper.make_node("Gather", [name, index], [f"{name}.rows"]))
        model.graph.node.insert(2, helper.make_node("Add", [f"{name}.before", f"{name}.rows"], [made]))
    saved(model, folder / "model.onnx")
    export_model(str(folder), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    found = {spec.name: spec.dtype for spec in manifest.graph("encode").inputs}
    assert found == {
        "input_ids": "int32", "attention_mask": "int32", "token_type_ids": "int64", "pooling_mask": "int64"
    }  # fmt: skip
    assert (manifest.text.max_tokens, manifest.text.num_token_types) == (40, 2)
    (item,) = (await answer(tmp_path / "out", Text("hello world"), include="embedding")).items
    ids = ids_of(folder, "hello world")[0]
    vectors = table[ids] + places[: len(ids)] + kinds[0]
    np.testing.assert_allclose(np.array(item.embedding), 2 * vectors.mean(axis=0), rtol=1e-5, atol=1e-6)


async def test_labels_that_no_file_names_are_numbered(folder: Path, tmp_path: Path, table: NDArray[np.float32]) -> None:
    saved(by_hand(table, output="logits"), folder / "model.onnx")
    with pytest.raises(ExportError, match=r"for embedding last_hidden_state or .* is needed"):
        export_model(str(folder), tmp_path / "out")
    export_model(str(folder), tmp_path / "out", task="token_classification")
    head = manifest_of(tmp_path / "out").head
    assert head is not None
    assert head.labels == tuple(f"LABEL_{index}" for index in range(DIM))
    result = await answer(tmp_path / "out", Text("hello world"), include="classes")
    ids = ids_of(folder, "hello world")
    logits = reference(table, ids, np.ones_like(ids))[0].astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(np.array(result.items[0].classes), expected, rtol=1e-5)


async def test_sparse_vectors_of_a_vocabulary(folder: Path, tmp_path: Path) -> None:
    table = np.random.default_rng(4).standard_normal((104, 104), dtype=np.float32)
    saved(by_hand(table, output="logits"), folder / "model.onnx")
    export_model(str(folder), tmp_path / "out", task="sparse")
    (item,) = (await answer(tmp_path / "out", Text("hello world"), include="sparse")).items
    ids = ids_of(folder, "hello world")
    logits = reference(table, ids, np.ones_like(ids))[0]
    expected = np.log1p(np.maximum(logits, 0)).max(axis=0)
    assert item.sparse is not None
    np.testing.assert_array_equal(item.sparse.indices, np.flatnonzero(expected))
    np.testing.assert_allclose(item.sparse.values, expected[expected > 0], rtol=1e-5)


def with_pooled(table: NDArray[np.float32]) -> onnx.ModelProto:
    """The mean of what the mask keeps, as a second output: of length 1, as sentence-transformers exports it."""
    model = by_hand(table)
    nodes = [
        helper.make_node("Mul", ["last_hidden_state", "axis_1"], ["kept.all"]),
        helper.make_node("ReduceSum", ["kept.all", "axes_1"], ["sum.all"], keepdims=0),
        helper.make_node("LpNormalization", ["sum.all"], ["sentence_embedding"], axis=-1, p=2),
    ]
    model.graph.node.extend(nodes)
    value = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["b", DIM])
    model.graph.output.insert(0, value)
    return model


def write_modules(folder: Path, mode: str) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": DIM, "pooling_mode": mode}))


async def test_a_graph_that_pools_itself_is_taken_at_its_word_where_no_module_says_how(
    folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    saved(with_pooled(table), folder / "model.onnx")
    export_model(str(folder), tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert manifest.embedding is not None
    assert (manifest.embedding.pooling, manifest.embedding.dim) == (("graph",), DIM)
    assert manifest.embedding.pooling_source == "model.onnx: sentence_embedding"
    outputs = [spec.name for spec in manifest.graph("encode").outputs]
    assert (outputs, manifest.text.token_dim) == (["token_embeddings", "pooled"], DIM)
    assert "pooling_mask" not in [spec.name for spec in manifest.graph("encode").inputs]
    (item,) = (await answer(tmp_path / "out", Text("hello world"), include="embedding")).items
    ids = ids_of(folder, "hello world")
    mean = reference(table, ids, np.ones_like(ids))[0].mean(axis=0)
    np.testing.assert_allclose(np.array(item.embedding), mean / np.linalg.norm(mean), rtol=1e-5, atol=1e-6)


def test_the_modules_and_the_graph_must_agree_on_pooling(
    folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    saved(with_pooled(table), folder / "model.onnx")
    write_modules(folder, "cls")
    with pytest.raises(ExportError, match=r"sentence_embedding: not what cls \(1_Pooling/config\.json\) gives"):
        export_model(str(folder), tmp_path / "out")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": DIM, "pooling_mode": "mean"}))
    export_model(str(folder), tmp_path / "out")
    embedding = manifest_of(tmp_path / "out").embedding
    assert embedding is not None
    assert (embedding.pooling, embedding.pooling_source) == (("mean",), "1_Pooling/config.json")


def test_prompts_that_do_not_count_need_pooling_of_ours(
    folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    model = with_pooled(table)
    del model.graph.output[1]
    saved(model, folder / "model.onnx")
    write_modules(folder, "mean")
    pooling = {"embedding_dimension": DIM, "pooling_mode": "mean", "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "a query "}}))
    with pytest.raises(ExportError, match=r"include_prompt: true is needed: model\.onnx pools by itself"):
        export_model(str(folder), tmp_path / "out")


@pytest.mark.parametrize("modules", [(), ("Transformer", "Dense")])
def test_late_interaction_and_dense_modules_are_refused(
    modules: tuple[str, ...], folder: Path, tmp_path: Path, table: NDArray[np.float32]
) -> None:
    """Whether a graph has the projection in it cannot be seen."""
    saved(by_hand(table, output="contextual"), folder / "model.onnx")
    if modules:
        types = [f"sentence_transformers.models.{kind}" for kind in (*modules, "Normalize")]
        types.append("sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask")
        entries = [
            {"idx": index, "path": "" if index == 0 else str(index), "type": kind} for index, kind in enumerate(types)
        ]
        (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ExportError, match=NO_DENSE):
        export_model(str(folder), tmp_path / "out", task=None if modules else "late_interaction")


def test_dense_modules_behind_pooling_are_refused(folder: Path, tmp_path: Path, table: NDArray[np.float32]) -> None:
    saved(with_pooled(table), folder / "model.onnx")
    write_modules(folder, "mean")
    entries = json.loads((folder / "modules.json").read_text())
    entries.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ExportError, match=NO_DENSE):
        export_model(str(folder), tmp_path / "out")
