"""The encoder against `transformers` in eager mode: the real model, and rows of which nothing is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from models.encoder import Encoder
from models.families.bert import BERT
from models.loading import load_encoder

torch.set_num_threads(1)
Inputs = tuple[Tensor, Tensor, Tensor]

ACTIVATIONS = ("gelu", "gelu_new", "relu")
PADDINGS = ("full", "right", "left", "holes")


def random_config(seed: int) -> BertConfig:
    """1 to 4 layers, 1 to 7 heads of odd and even width; all three activations."""
    rng = np.random.default_rng(seed)
    num_heads = int(rng.integers(1, 8))
    return BertConfig(
        vocab_size=int(rng.integers(20, 90)),
        hidden_size=num_heads * int(rng.integers(3, 12)),
        num_hidden_layers=1 + seed % 4,
        num_attention_heads=num_heads,
        intermediate_size=int(rng.integers(5, 70)),
        max_position_embeddings=40,
        type_vocab_size=1 + seed % 3,
        hidden_act=ACTIVATIONS[seed % 3],
        layer_norm_eps=(1e-12, 1e-5)[seed % 2],
    )


def random_model(config: BertConfig, seed: int) -> BertModel:
    """Weights scaled by fan-in, biases and norms away from 0 and 1: nothing that a wrong layer could hide behind."""
    torch.manual_seed(seed)
    model: BertModel = BertModel(config, add_pooling_layer=False)
    model.train(False)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 2.0 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.2
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, spread)
    return model


def load_from(model: BertModel, folder: Path) -> Encoder:
    """Our encoder over the files that the model saves."""
    model.save_pretrained(folder)
    config = BERT.read_config(json.loads((folder / "config.json").read_text()))
    return load_encoder(config, folder / "model.safetensors")


def random_inputs(config: BertConfig, padding: str, *, seq: int, seed: int) -> Inputs:
    """Four rows, random ids and token types, no row empty."""
    torch.manual_seed(seed)
    lengths = torch.randint(1, seq + 1, (4, 1))
    mask = (torch.arange(seq) < lengths).long()
    mask = {"full": torch.ones_like(mask), "left": mask.flip(1)}.get(padding, mask)
    if padding == "holes":
        mask = torch.randint(0, 2, (4, seq))
        mask[:, seq // 2] = 1
    ids, types = torch.randint(0, config.vocab_size, (4, seq)), torch.randint(0, config.type_vocab_size, (4, seq))
    return ids, mask, types


@torch.inference_mode()
def assert_equal(ours: Encoder, theirs: BertModel, inputs: Inputs, *, atol: float) -> None:
    """Compare at real positions: of hidden states, and of the queries of every attention matrix."""
    ids, mask, types = inputs
    hidden, attentions = ours(ids, mask, types)
    expected = theirs(input_ids=ids, attention_mask=mask, token_type_ids=types, output_attentions=True)
    real = mask.bool()
    torch.testing.assert_close(hidden[real], expected.last_hidden_state[real], atol=atol, rtol=0)
    assert len(attentions) == len(expected.attentions) == theirs.config.num_hidden_layers
    for weights, wanted in zip(attentions, expected.attentions, strict=True):
        # Queries first, so that the mask picks them: [batch, seq, heads, seq].
        torch.testing.assert_close(weights.transpose(1, 2)[real], wanted.transpose(1, 2)[real], atol=atol, rtol=0)


@pytest.mark.real_model
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_real_model_equals_transformers(padding: str, minilm_dir: Path) -> None:
    theirs = BertModel.from_pretrained(minilm_dir, attn_implementation="eager").train(False)
    ours = load_encoder(BERT.read_config(theirs.config.to_dict()), minilm_dir / "model.safetensors")
    assert_equal(ours, theirs, random_inputs(theirs.config, padding, seq=21, seed=3), atol=1e-5)


def test_an_empty_row_has_zero_weights_and_harms_nobody(tmp_path: Path) -> None:
    config = random_config(5)
    theirs = random_model(config, 5)
    ours = load_from(theirs, tmp_path)
    ids, mask, types = random_inputs(config, "right", seq=9, seed=5)
    mask[2] = 0
    with torch.inference_mode():
        hidden, attentions = ours(ids, mask, types)
    assert hidden.isfinite().all()
    for weights in attentions:
        assert weights.isfinite().all()
        assert (weights[2] == 0).all()
        assert (weights.sum(dim=-1)[[0, 1, 3]] - 1).abs().max() < 1e-5
    others = torch.tensor([0, 1, 3])
    assert_equal(ours, theirs, (ids[others], mask[others], types[others]), atol=2e-5)
