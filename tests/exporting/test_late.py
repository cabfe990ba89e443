"""Late interaction: vectors of tokens equal sentence-transformers' MultiVectorEncoder, in each layout that it reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoTokenizer

from export.bundle import export_model
from export.errors import ExportError
from export.texts.graphs.build import build_graph
from export.texts.graphs.kind import GraphKind
from export.texts.read.dense import write_dense
from export.texts.read.model import Model, read_model
from export.texts.weights import place_weights
from service.bundle import read_text_manifest
from service.manifest import DENSE_WEIGHTS
from tests.exporting.bundles import edited, run_graph

CONFIG = "config.json"
PIPELINE = "config_sentence_transformers.json"
METADATA = "artifact.metadata"
TEXTS = ("the cat is on the river bank", "hello", "a red dog")
MARKERS = ("[unused0]", "[unused1]")


def write_json(file: Path, values: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(values), "utf-8")


@pytest.fixture(scope="module")
def base(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder alone, whose vocabulary has two words that no text is cut into."""
    folder = tmp_path_factory.mktemp("late") / "base"
    shutil.copytree(tiny_models / "bert_mean", folder)
    shutil.rmtree(folder / "1_Pooling")
    shutil.rmtree(folder / "2_Normalize", ignore_errors=True)
    for name in ("modules.json", "sentence_bert_config.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    document = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocab = document["model"]["vocab"]
    for marker, word in zip(MARKERS, ("fast", "slow"), strict=True):
        vocab[marker] = vocab.pop(word)
    write_json(folder / "tokenizer.json", document)
    return folder


def multi_vector(base: Path, modules: Sequence[nn.Module], **settings: Any) -> MultiVectorEncoder:
    torch.manual_seed(4)
    for module in modules:
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.3)
    ends = [MultiVectorMask(), Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=[Transformer(str(base)), *modules, *ends], device="cpu", **settings)


def dense(width: int, out: int, activation: nn.Module | None = None, **settings: Any) -> Dense:
    activation = activation or nn.Identity()
    return Dense(width, out, activation_function=activation, module_input_name="token_embeddings", **settings)


def vectors(bundle: Path, text: str) -> NDArray[Any]:
    """What the service gives: the vectors of the real tokens, each of length one. -> [seq, token_dim]"""
    encoding = Tokenizer.from_file(str(bundle / "tokenizer.json")).encode(text)
    inputs = {
        "input_ids": np.array([encoding.ids]),
        "attention_mask": np.array([encoding.attention_mask]),
        "token_type_ids": np.array([encoding.type_ids]),
    }
    found = run_graph(bundle / "encode.onnx", inputs)["token_embeddings"][0]
    normed: NDArray[Any] = found / np.linalg.norm(found, axis=-1, keepdims=True)
    return normed


def write_bundle(folder: Path, bundle: Path) -> Model:
    """What a directory becomes, without its proof."""
    model = read_model(folder)
    assert model.dense is not None
    bundle.mkdir()
    tensors = place_weights(model, bundle, "float32") | write_dense(model.dense, bundle)
    (bundle / "tokenizer.json").write_bytes(model.tokenizer.content)
    graph = build_graph(model.config, tensors, dense=model.dense_configs, kind=GraphKind("encode"))
    (bundle / "encode.onnx").write_bytes(graph.SerializeToString())
    return model


def check_equal(bundle: Path, theirs: MultiVectorEncoder, prompts: Mapping[str, str]) -> None:
    """Documents whole; of a query its own tokens, which come before those that it is padded with."""
    for text in TEXTS:
        document = theirs.encode_document(text).numpy()
        np.testing.assert_allclose(vectors(bundle, prompts["document"] + text), document, atol=1e-5)
        query, found = theirs.encode_query(text).numpy(), vectors(bundle, prompts["query"] + text)
        np.testing.assert_allclose(found, query[: len(found)], atol=1e-5)


def test_its_own_layout(base: Path, tmp_path: Path) -> None:
    """Two projections, with everything that one may have; what it is searched by is asked as prompts."""
    modules = [dense(32, 32, activation=nn.Tanh(), use_residual=True), dense(32, 8, bias=False, use_residual=True)]
    theirs = multi_vector(base, modules, prompts={"query": "a ", "document": "the "})
    theirs.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    exported = export_model(str(tmp_path / "model"), tmp_path / "bundle")
    manifest = read_text_manifest(tmp_path / "bundle")
    assert (manifest.task, manifest.text.token_dim, manifest.embedding) == ("late_interaction", 8, None)
    assert manifest.text.prompts == {"query": "a ", "document": "the "}
    assert DENSE_WEIGHTS in manifest.weights
    assert [spec.name for spec in manifest.graph("encode").outputs] == ["token_embeddings"]
    assert exported.warnings == ()
    assert manifest.num_parameters == sum(
        tensor.numel()
        for name in ("model.safetensors", "1_Dense/model.safetensors", "2_Dense/model.safetensors")
        for key, tensor in load_file(tmp_path / "model" / name).items()
        if not key.startswith("pooler.")
    )
    check_equal(tmp_path / "bundle", theirs, manifest.text.prompts)


def test_without_a_projection_too(base: Path, tmp_path: Path) -> None:
    theirs = multi_vector(base, [])
    theirs.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    model = read_model(tmp_path / "model")
    assert (model.task, model.dense_configs, model.modes) == ("late_interaction", (), ())


@pytest.fixture(scope="module")
def pylate(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As PyLate saves a model: two modules, and its own words in sentence-transformers' file."""
    folder = tmp_path_factory.mktemp("late") / "pylate"
    shutil.copytree(base, folder)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    table = weights["embeddings.word_embeddings.weight"]
    weights["embeddings.word_embeddings.weight"] = torch.cat([table, torch.randn(2, 32)])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    write_json(folder / CONFIG, config | {"vocab_size": len(table) + 2})
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    entries = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    write_json(folder / "modules.json", entries)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 63, "do_lower_case": False})
    values = {"in_features": 32, "out_features": 8, "bias": False}
    write_json(folder / "1_Dense" / CONFIG, values | {"activation_function": "torch.nn.modules.linear.Identity"})
    save_file({"linear.weight": torch.randn(8, 32)}, folder / "1_Dense" / "model.safetensors")
    known = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32, "document_length": 48}
    known |= {"attend_to_expansion_tokens": False, "skiplist_words": list("!.,?")}
    write_json(folder / PIPELINE, {"model_type": "ColBERT", "prompts": {}, **known})
    return folder


def test_the_layout_of_pylate(pylate: Path, tmp_path: Path) -> None:
    model = write_bundle(pylate, tmp_path / "bundle")
    assert model.prompts.texts == {"query": "[Q] ", "document": "[D] "}
    assert (model.limit.max_tokens, model.limit.source) == (48, f"{PIPELINE}: document_length")
    tokenizer = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json"))
    assert tokenizer.encode("[Q] a dog").tokens == ["[CLS]", "[Q] ", "a", "dog", "[SEP]"]
    told = " ".join(model.warnings)
    assert "queries are padded with mask tokens there" in told
    assert "skiplist_words: tokens of documents are left out" in told
    assert '"[D] " is a special token' in told
    check_equal(tmp_path / "bundle", MultiVectorEncoder(str(pylate), device="cpu"), model.prompts.texts)


def stanford(base: Path, folder: Path, **metadata: Any) -> Path:
    """As Stanford's ColBERT saves a model: the projection among the weights, the rest in a file of its own."""
    shutil.copytree(base, folder)
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    torch.manual_seed(7)
    save_file(weights | {"linear.weight": torch.randn(8, 32)}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    write_json(folder / CONFIG, config | {"architectures": ["HF_ColBERT"]})
    write_json(folder / METADATA, {"doc_maxlen": 40, "query_maxlen": 16, "mask_punctuation": False} | metadata)
    return folder


def test_the_layout_of_stanford(base: Path, tmp_path: Path) -> None:
    folder = stanford(base, tmp_path / "model")
    model = write_bundle(folder, tmp_path / "bundle")
    assert model.prompts.texts == {"query": "[unused0] ", "document": "[unused1] "}
    assert (model.limit.max_tokens, model.limit.source) == (40, f"{METADATA}: doc_maxlen")
    tokenizer = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json"))
    assert tokenizer.encode("[unused1] a dog").tokens == ["[CLS]", "[unused1]", "a", "dog", "[SEP]"]
    assert not any("linear.weight" in warning for warning in model.warnings)
    check_equal(tmp_path / "bundle", MultiVectorEncoder(str(folder), device="cpu"), model.prompts.texts)


@pytest.mark.parametrize(
    ("file", "values", "parts"),
    [
        (PIPELINE, {"attend_to_expansion_tokens": True}, ("attend_to_expansion_tokens", "false is needed")),
        (PIPELINE, {"query_prefix": 3}, ("query_prefix", "a text is needed")),
        (PIPELINE, {"document_length": 2}, ("document_length", "from 3")),
        (f"1_Dense/{CONFIG}", {"activation_function": "my.Act"}, ("activation_function", "Tanh", "my.Act")),
        (f"1_Dense/{CONFIG}", {"in_features": 16}, ("in_features", "32 is needed")),
        (f"1_Dense/{CONFIG}", {"out_features": 9}, ("linear.weight", "[9, 32]", "[8, 32]")),
        (f"1_Dense/{CONFIG}", {"out_features": 0}, ("out_features", "from 1")),
        (f"1_Dense/{CONFIG}", {"bias": True}, ("linear.bias (dense.0.bias)", "missing")),
        (f"1_Dense/{CONFIG}", {"bias": 1}, ("bias", "true or false")),
        (f"1_Dense/{CONFIG}", {"use_residual": True}, ("residual.weight (dense.0.residual.weight)", "missing")),
        (f"1_Dense/{CONFIG}", {"module_input_name": "sentence_embedding"}, ("token_embeddings is needed",)),
        (f"1_Dense/{CONFIG}", {"scale": 2}, ("scale", "are known")),
        (PIPELINE, {"model_type": "SentenceTransformer"}, ("type", '["Transformer", "Dense"]')),
    ],
)
def test_what_is_wrong_is_named(
    pylate: Path, tmp_path: Path, file: str, values: dict[str, Any], parts: tuple[str, ...]
) -> None:
    folder = edited(pylate, tmp_path / "model", {file: values})
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


def test_a_model_without_a_projection_of_tokens_is_refused(tiny_models: Path) -> None:
    with pytest.raises(ExportError, match=r"linear\.weight \(dense\.0\.weight\): missing, as are Dense modules"):
        read_model(tiny_models / "bert_mean", "late_interaction")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attend_to_mask_tokens": True}, "artifact.metadata: attend_to_mask_tokens: false is needed"),
        ({"query_token_id": 4}, "artifact.metadata: query_token_id: a token is needed"),
    ],
)
def test_what_changes_the_vectors_is_refused(
    base: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError) as caught:
        read_model(stanford(base, tmp_path / "model", **settings))
    assert any(message in fault for fault in caught.value.faults)


def test_vectors_that_the_model_does_not_normalise_are_refused(base: Path, tmp_path: Path) -> None:
    """The service brings them to length one: only a model that does so itself gives the same."""
    theirs = multi_vector(base, [dense(32, 8)])
    theirs.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    entries = json.loads((tmp_path / "model" / "modules.json").read_text("utf-8"))
    write_json(tmp_path / "model" / "modules.json", entries[:-1])
    with pytest.raises(ExportError, match="MultiVectorMask and Normalize"):
        read_model(tmp_path / "model")
