"""Families with rotary positions as bundles of every precision: proved by the battery, and near `transformers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.bundle import export_model
from export.texts.graphs.local import chunk_size
from models.config import EncoderConfig
from service.bundle import read_text_manifest
from service.graph_spec import Precision
from service.parity import battery
from service.parity.cases import FORMS
from service.parity.report import ParityReport
from service.runners.ort import open_session
from tests.encoders.byte_pairs import make_tokenizer
from tests.encoders.references import REFERENCES, make_inputs, run_reference

torch.set_num_threads(1)
WINDOW = 6
CHUNK = chunk_size(WINDOW)
# Two layers of either family: of ModernBERT, one attends everywhere and one locally.
SIZES: dict[str, dict[str, Any]] = {
    "modernbert": {"layer_types": ["full_attention", "sliding_attention"], "local_attention": 2 * WINDOW},
    "nomic_bert": {"head_dim": 16},
}
# Of vectors, by precision: the least cosine with those of transformers in float32.
LEAST_COSINE: dict[Precision, float] = {"float16": 0.99999, "int8": 0.99}


def save_directory(name: str, folder: Path) -> Any:
    """A random model of some width with its tokenizer, as `save_pretrained` writes them. -> the model"""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 96,
    }
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 96, "pad_token_id": 3}
    model: Any = REFERENCES[name].model(4, **sizes, **SIZES[name])
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("precision", LEAST_COSINE)
@pytest.mark.parametrize("name", SIZES)
def test_a_bundle_passes_every_gate_of_its_precision(
    name: str, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The battery tries every length, among them those where a second chunk begins; of batches, one of several rows."""
    monkeypatch.setattr(battery, "FORMS", {"quick": replace(FORMS["quick"], batches=(3,))})
    model, out = save_directory(name, tmp_path / "model"), tmp_path / "out"
    assert export_model(str(tmp_path / "model"), out, precision=precision).manifest.precision == precision
    manifest = read_text_manifest(out)
    assert ParityReport.model_validate_json((out / "parity.json").read_bytes()).passed
    assert manifest.proof.kind == "pytorch"
    assert manifest.graph("encode").thresholds == ((WINDOW + 1, CHUNK) if name == "modernbert" else ())
    session, config = open_session(out / "encode.onnx", 1), EncoderConfig.from_dict(manifest.encoder or {})
    for seq in (5, CHUNK, CHUNK + 1, config.max_tokens):
        inputs = make_inputs(config, "right", seq=seq, seed=seq)
        found = session.run(["pooled"], {wanted.name: inputs[wanted.name] for wanted in session.get_inputs()})[0]
        hidden, _ = run_reference(REFERENCES[name], model, inputs)
        kept = inputs["attention_mask"][:, :, None]
        expected = (hidden * kept).sum(axis=1) / kept.sum(axis=1)
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((found * expected).sum(axis=1) / lengths).min() >= LEAST_COSINE[precision], seq
