"""NomicBERT: as transformers writes it, and under the keys that its own code was published with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from models.config import EncoderConfig
from models.families.family import ConfigError
from models.families.known import find_family
from tests.encoders.references import REFERENCES, make_inputs, read_saved, run_reference, save

torch.set_num_threads(1)
SMALL: dict[str, Any] = {
    "model_type": "nomic_bert", "vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 16, "max_position_embeddings": 64,
}  # fmt: skip
# What the published nomic-embed-text-v1.5 says, but for its sizes.
PUBLISHED: dict[str, Any] = {
    "model_type": "nomic_bert", "vocab_size": 30, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": 16,
    "layer_norm_epsilon": 1e-12, "activation_function": "swiglu", "attn_pdrop": 0.0, "causal": False,
    "dense_seq_output": True, "fused_bias_fc": True, "max_trained_positions": 2048, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "n_positions": 8192, "pad_vocab_size_multiple": 64, "parallel_block": False,
    "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "tie_word_embeddings": True, "type_vocab_size": 2, "use_rms_norm": False,
}  # fmt: skip


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in PUBLISHED.items() if name != key}


def read(config: dict[str, Any]) -> EncoderConfig:
    return find_family(config).read_config(config)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rope_theta": 50.0},
        {"rope_parameters": {"rope_theta": 60.0}},
        {"rope_parameters": {"rope_type": "default"}},
    ],
)
def test_a_base_is_that_of_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | values))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert read(SMALL | values).rotary_base == theirs.rope_parameters["rope_theta"]
    assert read(theirs.to_dict()) == read(SMALL | values)


def test_published_keys_describe_the_same_model() -> None:
    config = read(PUBLISHED)
    assert config == read(SMALL | {"max_position_embeddings": 2048})
    assert config.max_tokens == 2048  # beyond what was trained, the model's own code stretches the rotations
    assert read(PUBLISHED | {"rotary_scaling_factor": 2, "n_positions": 512}).max_tokens == 512


def test_a_published_directory_gives_what_transformers_computes(tmp_path: Path) -> None:
    """The weights that transformers saves have the names that the model's own code was published with."""
    reference = REFERENCES["nomic_bert"]
    model: Any = reference.model(3, rope_parameters={"rope_type": "default", "rope_theta": 77.0})
    theirs = model.config
    saved = save(model, tmp_path)
    published = PUBLISHED | {
        "vocab_size": theirs.vocab_size, "n_embd": theirs.hidden_size, "n_layer": theirs.num_hidden_layers,
        "n_head": theirs.num_attention_heads, "n_inner": theirs.intermediate_size, "rotary_emb_base": 77,
        "layer_norm_epsilon": theirs.layer_norm_eps, "type_vocab_size": theirs.type_vocab_size,
        "pad_token_id": theirs.pad_token_id, "max_trained_positions": theirs.max_position_embeddings,
        "hidden_act": theirs.hidden_act,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    config, _ = read_saved(tmp_path)
    assert config == saved.config
    inputs = make_inputs(config, "right", seq=30, seed=1)
    mask = inputs["attention_mask"].astype(bool)
    hidden, _ = run_reference(reference, model, inputs)
    for found in saved.run(inputs).values():
        np.testing.assert_allclose(found["token_embeddings"][mask], hidden[mask], atol=2e-5)


@pytest.mark.parametrize(
    ("config", "key", "expected"),
    [
        (SMALL | {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, "rope_theta", "which is 6.0"),
        (SMALL | {"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters.rope_type", "default"),
        (SMALL | {"rope_parameters": "default"}, "rope_parameters", "an object of rope_type"),
        (SMALL | {"rope_theta": 0}, "rope_parameters.rope_theta", "a number above 0"),
        (SMALL | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling", "null is needed"),
        (SMALL | {"head_dim": 6}, "head_dim", "the 4 of each of 3 heads"),
        (SMALL | {"hidden_size": 9}, "num_attention_heads", "heads of an even width"),
        (PUBLISHED | {"activation_function": "gelu"}, "activation_function", '"swiglu" is needed'),
        (PUBLISHED | {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction", "1 is needed"),
        (PUBLISHED | {"rotary_emb_interleaved": True}, "rotary_emb_interleaved", "false is needed"),
        (PUBLISHED | {"rotary_emb_scale_base": 512}, "rotary_emb_scale_base", "null is needed"),
        (PUBLISHED | {"qkv_proj_bias": True}, "qkv_proj_bias", "false is needed"),
        (PUBLISHED | {"prenorm": True}, "prenorm", "false is needed"),
        (PUBLISHED | {"use_rms_norm": True}, "use_rms_norm", "false is needed"),
        (PUBLISHED | {"causal": True}, "causal", "false is needed"),
        (PUBLISHED | {"num_experts": 8}, "num_experts", "0 is needed"),
        (PUBLISHED | {"moe_every_n_layers": 2}, "moe_every_n_layers", "0 is needed"),
        (without("mlp_fc1_bias"), "mlp_fc1_bias", "a value is needed"),
        (without("rotary_emb_fraction"), "rotary_emb_fraction", "a value is needed"),
        (PUBLISHED | {"hidden_size": 24}, "n_embd", "another name of hidden_size, which is 24"),
        (PUBLISHED | {"n_inner": None}, "intermediate_size", "a whole number from 1"),
    ],
)  # fmt: skip
def test_what_would_be_computed_otherwise_is_refused_by_key(config: dict[str, Any], key: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(config)
    (fault,) = caught.value.faults
    assert fault.key == key
    assert expected in fault.expected
