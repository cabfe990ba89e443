"""Families that are not built here, exported by PyTorch: equal to sentence-transformers and to transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer, DebertaV2Config
from transformers import DebertaV2ForSequenceClassification as Classifier

from export.bundle import export_model
from service.bundle import open_text_bundle
from service.engine.engine import Engine
from service.engine.request import AttentionChoice, EncodeRequest, EncodeResult, Text
from service.manifest import TextManifest
from service.settings import Settings
from tests.traced.conftest import Export
from tests.traced.models import RELATIVE, SHAPE, louder, write

pytestmark = pytest.mark.slow

TEXTS = ("hello world", "a cat is on the river bank", "", "Héllo [SEP] 中国, 42!", "dog " * 100)
FAMILIES = ["deberta-v2", "t5", "mobilebert"]


def manifest_of(path: Path) -> TextManifest:
    return open_text_bundle(path).manifest


async def asked(path: Path, *texts: str, **options: Any) -> EncodeResult:
    """What the service answers to some texts in one request."""
    engine = Engine.start(open_text_bundle(path), Settings(num_threads=1))
    try:
        return await engine.encode(EncodeRequest([Text(text) for text in texts], truncate="right", **options))
    finally:
        await engine.close(1)


async def vectors(path: Path, *texts: str) -> NDArray[np.float32]:
    return np.array([item.embedding for item in (await asked(path, *texts)).items])


@pytest.mark.parametrize("family", FAMILIES)
async def test_vectors_are_those_of_sentence_transformers(family: str, traced: Export) -> None:
    """Alone and in a batch."""
    source, exported = traced(family)
    model = SentenceTransformer(str(source), device="cpu")
    expected = np.concatenate([model.encode([text]) for text in TEXTS])
    together = await vectors(exported.path, *TEXTS)
    alone = np.concatenate([await vectors(exported.path, text) for text in TEXTS[:2]])
    np.testing.assert_allclose(together, expected, atol=2e-6)
    np.testing.assert_allclose(alone, together[:2], atol=2e-6)
    assert np.abs(together[0] - together[1]).max() > 0.05


@pytest.mark.parametrize("family", FAMILIES)
async def test_attention_is_that_of_transformers(family: str, traced: Export) -> None:
    source, exported = traced(family)
    include = frozenset({"attention", "tokens"})
    result = await asked(exported.path, *TEXTS[:2], include=include, attention=AttentionChoice(layers="all"))
    maker = AutoModelForTextEncoding if family == "t5" else AutoModel
    model = maker.from_pretrained(source, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    for text, item in zip(TEXTS, result.items, strict=False):
        given = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            expected = model(**given, output_attentions=True, return_dict=True).attentions
        assert item.attention is not None
        assert len(item.attention) == len(expected) > 0
        for found, layer in zip(item.attention, expected, strict=True):
            np.testing.assert_allclose(found.weights, layer[0].numpy(), atol=1e-5)


def test_what_is_written_says_where_it_is_from(traced: Export) -> None:
    source, exported = traced("deberta-v2")
    manifest = manifest_of(exported.path)
    assert (manifest.family, manifest.file, manifest.encoder) == ("deberta-v2", "model.safetensors", None)
    assert (manifest.proof.kind, manifest.proof.batch_invariant, exported.warnings) == ("pytorch", "proved", ())
    assert "DebertaV2Model of transformers 5." in manifest.proof.reference
    assert manifest.created_by.keys() >= {"torch", "onnxscript", "transformers"}
    assert manifest.source.keys() >= {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"}
    assert (manifest.roles, manifest.text.max_tokens) == (("encode", "attend"), 64)
    assert [spec.meaning for spec in manifest.graph("encode").inputs] == ["token_ids", "attention_mask", "pooling_mask"]
    gates = {gate.name for gate in exported.report.gates}
    assert gates >= {"token_embeddings", "pooled", "attention", "alone", "padded", "roles", "probes: pooled"}
    content = (exported.path / "encode.onnx").read_bytes() + (exported.path / "attend.onnx").read_bytes()
    assert str(Path(torch.__file__).parent).encode() not in content
    assert str(source).encode() not in content


def test_neighbours_that_change_a_row_are_kept_from_it(traced: Export) -> None:
    """MobileBERT looks at the next token's word, padding or not."""
    _, exported = traced("mobilebert")
    manifest = manifest_of(exported.path)
    assert (manifest.batching, manifest.proof.batch_invariant, manifest.proof.kind) == (
        "alone", "by_isolation", "pytorch",
    )  # fmt: skip
    assert manifest.text.num_token_types == 2


async def test_a_family_that_is_built_here_is_equal_both_ways(tiny_models: Path, tmp_path: Path) -> None:
    """And what the task has no use for may be missing."""
    source = tiny_models / "bert_mean"
    exported = export_model(str(source), tmp_path / "traced", via="torch")
    export_model(str(source), tmp_path / "built")
    texts = TEXTS[1:3]
    np.testing.assert_allclose(
        await vectors(tmp_path / "traced", *texts), await vectors(tmp_path / "built", *texts), atol=2e-6
    )
    assert manifest_of(exported.path).attention is not None


async def test_a_classifier_has_its_head(tiny_models: Path, tmp_path: Path) -> None:
    source = write("deberta-v2", tiny_models, tmp_path / "source")
    for file in ("modules.json", "sentence_bert_config.json"):
        (source / file).unlink()
    torch.manual_seed(5)
    values = SHAPE | RELATIVE | {"num_hidden_layers": 1, "num_labels": 3, "pooler_dropout": 0}
    model = louder(Classifier(DebertaV2Config(**values)))
    model.save_pretrained(source)
    exported = export_model(str(source), tmp_path / "out", via="torch")
    manifest = manifest_of(exported.path)
    assert manifest.task == "sequence_classification"
    assert manifest.head is not None
    assert manifest.head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    result = await asked(exported.path, *TEXTS[:2], include=frozenset({"classes"}), raw_scores=True)
    given = AutoTokenizer.from_pretrained(source)(TEXTS[1], return_tensors="pt")
    with torch.inference_mode():
        (expected,) = model(**given).logits.numpy()
    assert result.items[1].classes is not None
    np.testing.assert_allclose(result.items[1].classes, expected, atol=1e-5)
