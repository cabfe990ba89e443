"""The PyTorch reference behind the runner seam."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertModel

from export.texts.graphs.kind import GraphKind
from export.texts.graphs.spec import graph_spec
from models.config import EncoderConfig
from models.families.bert import BERT
from service.bundle import Bundle
from service.manifest import WEIGHTS, AttentionSpec, EmbeddingSpec, TextManifest
from service.parity.probes import check_probes, load_probes
from service.runners.torch import TorchRunner, named_outputs
from tests.fixtures.fakes import fake_manifest

torch.set_num_threads(1)
GOLDENS = Path(__file__).parents[2] / "export" / "goldens" / "all-MiniLM-L6-v2.safetensors"
TEXTS = ["hello world", "a cat is on the river bank", "red"]


def bundle_of(model_dir: Path, path: Path, *pooling: str) -> Bundle[TextManifest]:
    """As much of a bundle as the reference reads: the manifest and the weights."""
    config: EncoderConfig = BERT.read_config(json.loads((model_dir / "config.json").read_text()))
    shutil.copy(model_dir / "model.safetensors", path / WEIGHTS)
    manifest = fake_manifest(max_tokens=config.max_positions)
    changes = {
        "encoder": config.to_dict(),
        "graphs": tuple(graph_spec(config, pooling=pooling, kind=GraphKind(role)) for role in ("encode", "attend")),
        "embedding": EmbeddingSpec(dim=config.dim * len(pooling), pooling=pooling, pooling_source="", normalize=False),
        "attention": AttentionSpec(layers=config.num_layers, heads=config.num_heads, head_dim=config.head_dim),
    }
    return Bundle(path, manifest.model_copy(update=changes))


@pytest.mark.parametrize(("name", "pooling"), [("bert_mean", "mean"), ("bert_cls", "cls")])
def test_equals_sentence_transformers(name: str, pooling: str, tiny_models: Path, tmp_path: Path) -> None:
    published = SentenceTransformer(str(tiny_models / name), device="cpu")
    features = {
        key: np.asarray(value) for key, value in published.tokenize(TEXTS).items() if "mask" in key or "id" in key
    }
    inputs = {key: features[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    inputs["pooling_mask"] = inputs["attention_mask"]
    runner = TorchRunner.open(bundle_of(tiny_models / name, tmp_path, pooling))
    (pooled,) = runner.run("encode", inputs, ["pooled"])
    expected = published.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), expected, atol=1e-6)


def test_outputs_come_by_name_in_the_order_asked(tiny_models: Path, tmp_path: Path) -> None:
    runner = TorchRunner.open(bundle_of(tiny_models / "bert_mean", tmp_path, "mean", "cls"))
    ids = np.array([[2, 40, 41, 3], [2, 42, 3, 0]])
    mask = (ids != 0).astype(np.int64)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids, "pooling_mask": mask}
    runner.load("attend")
    second, pooled, hidden = runner.run("attend", inputs, ["attention.1", "pooled", "token_embeddings"])
    model = BertModel.from_pretrained(tiny_models / "bert_mean", attn_implementation="eager").train(False)
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids), torch.from_numpy(mask), output_attentions=True)
    np.testing.assert_allclose(second, expected.attentions[1].numpy(), atol=1e-6)
    assert pooled.shape == (2, 64)
    np.testing.assert_array_equal(pooled[:, 32:], hidden[:, 0])
    assert {array.dtype for array in (second, pooled, hidden)} == {np.dtype(np.float32)}


def test_what_the_bundle_lacks_is_refused(tiny_models: Path, tmp_path: Path) -> None:
    runner = TorchRunner.open(bundle_of(tiny_models / "bert_mean", tmp_path, "mean"))
    with pytest.raises(KeyError, match="classify"):
        runner.load("classify")
    with pytest.raises(KeyError, match=r"attention\.0"):
        runner.run("encode", {}, ["attention.0"])


def test_it_says_what_it_is(tiny_models: Path, tmp_path: Path) -> None:
    info = TorchRunner.open(bundle_of(tiny_models / "bert_mean", tmp_path, "mean")).info()
    assert info.backend == f"torch {torch.__version__} eager float32"
    assert info.provider == "cpu"


@pytest.mark.real_model
def test_the_real_model_gives_the_goldens(minilm_dir: Path, tmp_path: Path) -> None:
    """Goldens come from `transformers`; every layer's attention is compared."""
    bundle = bundle_of(minilm_dir, tmp_path, "mean")
    goldens = load_probes(GOLDENS)
    assert goldens.reference.startswith("transformers ")
    assert len(goldens.cases) >= 4
    report = check_probes(bundle.manifest, TorchRunner.open(bundle), goldens, roles=("encode", "attend"))
    assert report.passed, report.failures
    assert {gate.name: gate.num_checks for gate in report.gates}["attention"] == 6 * len(goldens.cases)


def test_a_mapping_is_read_by_its_names_alone() -> None:
    query, key = torch.zeros(1), torch.ones(1)
    found = named_outputs({"key": key, "query": query, "cache": None}, ["query", "key"])
    assert found["query"] is query
    assert found["key"] is key
    for names, declared in ((["query", "keys"], "keys, query"), (["query"], "query")):
        with pytest.raises(ValueError, match=f"returned key, query, and {declared} are declared"):
            named_outputs({"key": key, "query": query}, names)
