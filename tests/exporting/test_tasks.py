"""What a directory is for, and its head: read from architectures and modules, exported, equal to the libraries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertForTokenClassification

from export.bundle import export_model
from export.errors import ExportError
from export.texts.graphs.build import build_graph
from export.texts.graphs.kind import GraphKind
from export.texts.read.model import read_model
from export.texts.weights import place_weights
from service.bundle import read_text_manifest
from service.manifest import HeadSpec, Task
from tests.exporting.bundles import edited, run_graph

CONFIG = "config.json"
PIPELINE = "config_sentence_transformers.json"
LABELS = ("O", "B-PET", "I-PET")
PAIRS = [("a red dog", "the dog is red"), ("hello", "a cat is on the river bank"), ("bank", "")]
TEXTS = [text for pair in PAIRS for text in pair]


def save(folder: Path, model: Any, tiny_models: Path) -> Path:
    """A model with the tokenizer of the tiny ones. Its weights are larger than they are initialised."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_models / "bert_mean").save_pretrained(folder)
    return folder


def bert(**settings: Any) -> BertConfig:
    return BertConfig(
        vocab_size=104,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        **settings,
    )


@pytest.fixture(scope="module")
def tagger(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    config = bert(id2label=dict(enumerate(LABELS)), label2id={name: index for index, name in enumerate(LABELS)})
    return save(tmp_path_factory.mktemp("tasks") / "tagger", BertForTokenClassification(config), tiny_models)


@pytest.fixture(scope="module")
def language_model(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(6)
    return save(tmp_path_factory.mktemp("tasks") / "language_model", BertForMaskedLM(bert()), tiny_models)


@pytest.fixture(scope="module")
def splade(language_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "splade"
    SparseEncoder(str(language_model), device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def outputs(bundle: Path, inputs: Sequence[Any], role: str = "encode") -> dict[str, NDArray[Any]]:
    """Every output of a bundle's graph for texts or pairs, padded by its tokenizer."""
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(list(inputs))
    found = run_graph(
        bundle / f"{role}.onnx",
        {
            "input_ids": np.array([encoding.ids for encoding in encodings]),
            "attention_mask": np.array([encoding.attention_mask for encoding in encodings]),
            "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
        },
    )
    return found | {"mask": np.array([encoding.attention_mask for encoding in encodings], dtype=bool)}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("xenc", HeadSpec(labels=("LABEL_0",), problem="regression", activation="sigmoid")),
        ("cls3", HeadSpec(labels=("neg", "neu", "pos"), problem="single_label", activation="softmax")),
        ("multi", HeadSpec(labels=("x", "y", "z"), problem="multi_label", activation="sigmoid")),
        ("regr", HeadSpec(labels=("LABEL_0",), problem="regression", activation="identity")),
    ],
)
def test_a_classifier_is_known_by_its_architecture(tiny_models: Path, name: str, spec: HeadSpec) -> None:
    model = read_model(tiny_models / name)
    assert model.task == "sequence_classification"
    assert model.head is not None
    assert model.head.spec == spec
    assert model.warnings == ()


@pytest.mark.parametrize(
    ("edits", "activation"),
    [
        ({CONFIG: {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}}, "identity"),
        ({CONFIG: {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({CONFIG: {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Softmax"}}, "softmax"),
        (
            {
                PIPELINE: {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
                CONFIG: {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            },
            "sigmoid",
        ),
    ],
)
def test_the_activation_of_a_cross_encoder_is_read(
    tiny_models: Path, tmp_path: Path, edits: dict[str, dict[str, Any]], activation: str
) -> None:
    model = read_model(edited(tiny_models / "xenc", tmp_path / "model", edits))
    assert model.head is not None
    assert model.head.spec is not None
    assert model.head.spec.activation == activation


def test_labels_without_names_are_counted(tiny_models: Path, tmp_path: Path) -> None:
    edits: dict[str, dict[str, Any]] = {CONFIG: {"id2label": None, "num_labels": 3}}
    model = read_model(edited(tiny_models / "cls3", tmp_path / "model", edits))
    assert model.head is not None
    assert model.head.spec is not None
    assert model.head.spec.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"id2label": {"0": "a", "2": "b", "3": "c"}}, ("id2label", "every index from 0 on")),
        ({"id2label": {"0": "a", "00": "b", "2": "c"}}, ("id2label", "every index from 0 on")),
        ({"id2label": {"0": "a", "1" * 5_000: "b"}}, ("id2label", "every index from 0 on")),
        ({"id2label": {"0": 1}}, ("id2label", "a text")),
        ({"id2label": ["a"]}, ("id2label", "an object")),
        ({"id2label": None, "num_labels": 0}, ("num_labels", "from 1")),
        ({"id2label": None}, ("classifier.weight", "shape [3, 32]", "[2, 32]")),
        ({"problem_type": "ranking"}, ("problem_type", "regression", '"ranking"')),
        (
            {"sbert_ce_default_activation_function": "my_module.Act"},
            ("activation_function", "Sigmoid", "my_module.Act"),
        ),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
            ("sentence_transformers.activation_fn", "Identity", "Tanh"),
        ),
        ({"architectures": "BertModel"}, ("architectures", "a list of names")),
        ({"architectures": ["BertForQuestionAnswering"]}, ("architectures", "--task", "BertForQuestionAnswering")),
        ({"architectures": ["BertModel", "BertForSequenceClassification"]}, ("architectures", "all for one task")),
    ],
)
def test_what_is_wrong_with_a_head_is_named(
    tiny_models: Path, tmp_path: Path, values: dict[str, Any], parts: tuple[str, ...]
) -> None:
    folder = edited(tiny_models / "cls3", tmp_path / "model", {CONFIG: values})
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


def test_one_label_that_is_always_right_is_refused(tiny_models: Path, tmp_path: Path) -> None:
    edits: dict[str, dict[str, Any]] = {CONFIG: {"problem_type": "single_label_classification"}}
    with pytest.raises(ExportError, match="problem_type: another is needed with one label"):
        read_model(edited(tiny_models / "xenc", tmp_path / "model", edits))


@pytest.mark.parametrize(
    ("task", "missing"),
    [
        ("sequence_classification", ("classifier.weight", "classifier.bias")),
        ("token_classification", ("classifier.weight", "classifier.bias")),
        (
            "sparse",
            (
                "cls.predictions.transform.dense.weight",
                "cls.predictions.transform.dense.bias",
                "cls.predictions.transform.LayerNorm.weight",
                "cls.predictions.transform.LayerNorm.bias",
                "cls.predictions.decoder.bias or cls.predictions.bias",
            ),
        ),
    ],
)
def test_a_head_that_is_not_there_is_never_made_up(tiny_models: Path, task: Task, missing: tuple[str, ...]) -> None:
    with pytest.raises(ExportError) as caught:
        read_model(tiny_models / "bert_mean", task)
    assert len(caught.value.faults) == len(missing)
    for name, fault in zip(missing, caught.value.faults, strict=True):
        assert f"{name} (head." in fault
        assert "missing" in fault


def test_a_part_that_no_task_asks_for_may_be_missing(tagger: Path, language_model: Path) -> None:
    """Neither has BERT's pooler, which only a classifier of texts looks at."""
    assert read_model(tagger).task == "token_classification"
    assert read_model(language_model).task == "embedding"
    with pytest.raises(ExportError, match=r"bert\.pooler\.dense\.weight \(head\.dense\.weight\): missing"):
        read_model(tagger, "sequence_classification")


def test_what_a_task_has_no_use_for_is_listed(tiny_models: Path) -> None:
    model = read_model(tiny_models / "cls3", "embedding")
    assert (model.task, model.head, model.pooling.modes) == ("embedding", None, ("mean",))
    assert model.warnings == (
        "model.safetensors: classifier.bias: not used for embedding",
        "model.safetensors: classifier.weight: not used for embedding",
    )


def test_a_language_model_gives_sparse_vectors_only_when_asked(language_model: Path, splade: Path) -> None:
    assert read_model(language_model).head is None
    for model in (read_model(language_model, "sparse"), read_model(splade)):
        assert model.task == "sparse"
        assert model.head is not None
        assert model.head.spec is None
        assert (model.head.config.sparse_pooling, model.head.config.sparse_activation) == ("max", "relu")
        assert (model.head.config.output_dim, model.head.config.is_tied) == (104, True)


@pytest.mark.parametrize(
    ("file", "values", "parts"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, ("pooling_strategy", "max, sum", '"mean"')),
        ("1_SpladePooling/config.json", {"activation_function": "gelu"}, ("activation_function", "log1p_relu")),
        ("1_SpladePooling/config.json", {"top_k": 5}, ("top_k", "are known")),
        ("sentence_bert_config.json", {"transformer_task": "retrieval"}, ("transformer_task", "fill-mask is needed")),
        ("sentence_bert_config.json", {"transformer_task": None}, ("transformer_task", "feature-extraction")),
    ],
)
def test_what_is_wrong_with_a_sparse_pipeline_is_named(
    splade: Path, tmp_path: Path, file: str, values: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(ExportError) as caught:
        read_model(edited(splade, tmp_path / "model", {file: values}))
    assert any(all(part in fault for part in (file, *parts)) for fault in caught.value.faults), str(caught.value)


def write_graph(folder: Path, bundle: Path) -> Path:
    """What a directory becomes, without its proof."""
    model = read_model(folder)
    bundle.mkdir()
    tensors = place_weights(model, bundle, "float32")
    (bundle / "tokenizer.json").write_bytes(model.tokenizer.content)
    graph = build_graph(model.config, tensors, head=model.head_config, kind=GraphKind("encode"))
    (bundle / "encode.onnx").write_bytes(graph.SerializeToString())
    return bundle


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_sparse_vectors_equal_sentence_transformers(
    language_model: Path, tmp_path: Path, pooling: Literal["max", "sum"], activation: Literal["relu", "log1p_relu"]
) -> None:
    """Saved with the module of older versions, so that both are read."""
    modules: list[torch.nn.Module] = [MLMTransformer(str(language_model)), SpladePooling(pooling, activation)]
    theirs = SparseEncoder(modules=modules, device="cpu")
    theirs.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    expected = theirs.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    found = outputs(write_graph(tmp_path / "model", tmp_path / "bundle"), TEXTS)["sparse"]
    assert 0 < (expected > 0).mean() < 1
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_sparse_pipeline_is_proved(splade: Path, tmp_path: Path) -> None:
    exported = export_model(str(splade), tmp_path / "bundle")
    assert {"sparse", "random weights: sparse", "probes: sparse"} <= {gate.name for gate in exported.report.gates}
    manifest = read_text_manifest(tmp_path / "bundle")
    assert (manifest.task, manifest.head, manifest.embedding) == ("sparse", None, None)
    assert manifest.graph("encode").output("sparse").axes == ("batch", 104)


def test_scores_of_pairs_equal_a_cross_encoder(tiny_models: Path, tmp_path: Path) -> None:
    theirs = CrossEncoder(str(tiny_models / "xenc"), device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"))
    expected = theirs.predict(PAIRS)
    for index, folder in enumerate((tiny_models / "xenc", tmp_path / "saved")):
        head = read_model(folder).head
        assert head is not None
        assert head.spec is not None
        assert head.spec.activation == "sigmoid"
        logits = outputs(write_graph(folder, tmp_path / str(index)), PAIRS)["logits"]
        np.testing.assert_allclose(1 / (1 + np.exp(-logits[:, 0])), expected, atol=1e-6)


def test_classes_of_tokens_equal_transformers(tagger: Path, tmp_path: Path) -> None:
    export_model(str(tagger), tmp_path / "bundle")
    theirs = BertForTokenClassification.from_pretrained(tagger, attn_implementation="eager").train(False)
    given = AutoTokenizer.from_pretrained(tagger)(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**given, output_attentions=True)
    found = outputs(tmp_path / "bundle", TEXTS, "attend")
    mask = found["mask"]
    np.testing.assert_allclose(found["token_logits"][mask], expected.logits.numpy()[mask], atol=1e-5)
    for layer, weights in enumerate(expected.attentions):
        ours, wanted = (values.transpose(0, 2, 1, 3)[mask] for values in (found[f"attention.{layer}"], weights.numpy()))
        np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_the_manifest_says_what_the_model_is_for(tiny_models: Path, tmp_path: Path) -> None:
    exported = export_model(str(tiny_models / "multi"), tmp_path / "bundle")
    manifest = read_text_manifest(tmp_path / "bundle")
    assert (manifest.task, manifest.embedding, manifest.embedding_space) == ("sequence_classification", None, None)
    assert manifest.head == HeadSpec(labels=("x", "y", "z"), problem="multi_label", activation="sigmoid")
    assert manifest.head_config is not None
    assert manifest.head_config["activation"] == "tanh"
    for graph in manifest.graphs:
        assert [spec.name for spec in graph.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
        assert [spec.name for spec in graph.outputs][:2] == ["token_embeddings", "logits"]
        assert graph.output("logits").axes == ("batch", 3)
    gates = {gate.name for gate in exported.report.gates}
    assert {"logits", "random weights: logits", "probes: logits", "alone", "padded", "attention"} <= gates


def test_a_task_is_asked_of_model_directories_alone(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="options that do not belong to it") as caught:
        export_model("preset:dot", tmp_path / "bundle", task="sparse")
    assert caught.value.faults == ("--task: a source of this kind has none",)


def test_without_torch_a_head_is_proved_by_invariance(tiny_models: Path, tmp_path: Path, no_torch: None) -> None:
    exported = export_model(str(tiny_models / "cls3"), tmp_path / "bundle", unproved=True)
    assert exported.manifest.proof.kind == "invariance"
    assert "logits" not in {gate.name for gate in exported.report.gates}
    assert "alone" in {gate.name for gate in exported.report.gates}
