"""NomicBERT (Nussbaum et al., 2024): BERT's post-norm layers, rotary positions, gated feed-forward parts, few biases.

Read as transformers writes it. The files that the model's own code was published with are the same weights under other
keys of config.json, which are read too; what that code computes beyond transformers is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.families.bert import CONFIG_NAMES, HEADS
from models.families.family import FUSED_QKV, ConfigError, ConfigFault, Family, with_bias
from models.families.rope import head_faults, rope_faults

# What the model's own code computes with when config.json does not say: nothing that could be taken for granted.
_SAID_BY_ITS_CODE = ("activation_function", "rotary_emb_fraction", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")


def _read_more(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The base of the rotations, and how many positions there are. Raises ConfigError."""
    base, faults = _read_base(config)
    faults += head_faults(config, values)
    if "n_embd" in config:
        faults += [ConfigFault(key, None, "a value is needed") for key in _SAID_BY_ITS_CODE if key not in config]
    if faults:
        raise ConfigError(faults)
    # Beyond those that it was trained for, the model's own code stretches the rotations.
    limits = [values.get("max_positions"), config.get("max_trained_positions"), config.get("n_positions")]
    return {"rotary_base": base, "max_positions": min(limit for limit in limits if type(limit) is int)}


def _read_base(config: Mapping[str, Any]) -> tuple[float, list[ConfigFault]]:
    parameters = config.get("rope_parameters")
    inside = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    keys = {"rope_parameters.rope_theta": inside, "rope_theta": config.get("rope_theta")}
    keys["rotary_emb_base"] = config.get("rotary_emb_base")
    said = {key: value for key, value in keys.items() if value is not None} or {"rope_theta": 1000.0}
    first, base = next(iter(said.items()))
    faults = [*rope_faults(parameters, base, "rope_parameters")]
    for key, value in said.items():
        if value != base:
            faults.append(ConfigFault(key, value, f"the {first}, which is {base}, is needed"))
    return base, faults


NOMIC_BERT = Family(
    name="nomic_bert",
    config_names=CONFIG_NAMES,
    config_aliases={
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    config_defaults={
        "max_positions": 2048, "num_token_types": 2, "layer_norm_eps": 1e-12, "activation": "silu", "pad_token_id": 0,
        "positions": "rotary", "is_ffn_gated": True, "has_attention_bias": False, "has_ffn_bias": False,
    },
    fixed={
        "rope_scaling": None, "partial_rotary_factor": 1, "activation_function": "swiglu", "rotary_emb_fraction": 1,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "qkv_proj_bias": False, "mlp_fc1_bias": False,
        "mlp_fc2_bias": False, "prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False,
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "num_experts": 0,
        "moe_every_n_layers": 0,
    },
    read_more=_read_more,
    weight_names={
        "embeddings.word.weight": "embeddings.word_embeddings.weight",
        "embeddings.token_type.weight": "embeddings.token_type_embeddings.weight",
    }
    | with_bias(
        {
            "embeddings.norm": "emb_ln",
            "layers.{i}.attention.query": "encoder.layers.{i}.attn.Wqkv",
            "layers.{i}.attention.key": "encoder.layers.{i}.attn.Wqkv",
            "layers.{i}.attention.value": "encoder.layers.{i}.attn.Wqkv",
            "layers.{i}.attention.output": "encoder.layers.{i}.attn.out_proj",
            "layers.{i}.attention_norm": "encoder.layers.{i}.norm1",
            "layers.{i}.ffn.gate": "encoder.layers.{i}.mlp.fc12",
            "layers.{i}.ffn.up": "encoder.layers.{i}.mlp.fc11",
            "layers.{i}.ffn.down": "encoder.layers.{i}.mlp.fc2",
            "layers.{i}.ffn_norm": "encoder.layers.{i}.norm2",
        }
    ),
    weight_rows=FUSED_QKV,
    layer_prefix="encoder.layers.{i}.",
    prefixes=("", "nomic_bert.", "bert.", "model.", "0.auto_model."),
    unused=("pooler.", "cls."),
    heads={**HEADS, "masked_lm": replace(HEADS["masked_lm"], norm="cls.predictions.transform.layer_norm")},
)  # fmt: skip
