"""ModernBERT (Warner et al., 2024): pre-norm, rotary positions, gated feed-forward parts, two of three layers local."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.families.family import FUSED_QKV, ConfigError, ConfigFault, Family, Rows, with_bias
from models.families.head import Head
from models.families.rope import head_faults, rope_faults
from models.head_config import HeadName

_LOCAL = "sliding_attention"
# How a layer attends, by its name in `layer_types` → the older key of its base, and the base when nothing is said.
_KINDS = {"full_attention": ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}
# Layers are listed, one by one, before it is known how many the weights have.
_MAX_LAYERS = 1000


def _read_more(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Bases, windows and which layers are local. Raises ConfigError."""
    faults = [*head_faults(config, values)]
    bases = _read_bases(config, faults)
    window = config.get("local_attention", 128)
    if type(window) is not int or window < 1:
        faults.append(ConfigFault("local_attention", window, "a whole number from 1 is needed"))
    elif config.get("sliding_window", window // 2) != window // 2:
        expected = f"half of local_attention, which is {window}, is needed"
        faults.append(ConfigFault("sliding_window", config["sliding_window"], expected))
    kinds = _read_kinds(config, values.get("num_layers"), faults)
    if faults:
        raise ConfigError(faults)
    local = tuple(layer for layer, kind in enumerate(kinds) if kind == _LOCAL)
    return {
        "rotary_base": bases["full_attention"],
        # Without local layers there is nothing that these would say.
        **({"local_rotary_base": bases[_LOCAL], "local_layers": local, "local_window": window // 2} if local else {}),
    }


def _read_bases(config: Mapping[str, Any], faults: list[ConfigFault]) -> dict[str, Any]:
    said = config.get("rope_parameters") or {}
    if not isinstance(said, dict) or said.keys() - _KINDS.keys():
        faults.append(ConfigFault("rope_parameters", said, f"an object with {' and '.join(_KINDS)} is needed"))
        return {}
    bases = {}
    for kind, (older, default) in _KINDS.items():
        own = said.get(kind)
        bases[kind] = own["rope_theta"] if isinstance(own, dict) and "rope_theta" in own else config.get(older, default)
        faults += rope_faults(own, bases[kind], f"rope_parameters.{kind}")
    return bases


def _read_kinds(config: Mapping[str, Any], num_layers: Any, faults: list[ConfigFault]) -> list[str]:
    """How each layer attends; nothing when the number of layers is not known."""
    if type(num_layers) is not int:
        return []
    if num_layers > _MAX_LAYERS:
        faults.append(ConfigFault("num_hidden_layers", num_layers, f"at most {_MAX_LAYERS} layers are needed"))
        return []
    kinds = config.get("layer_types")
    if kinds is None:
        step = config.get("global_attn_every_n_layers", 3)
        if type(step) is int and step > 0:
            return [_LOCAL if layer % step else "full_attention" for layer in range(num_layers)]
        faults.append(ConfigFault("global_attn_every_n_layers", step, "a whole number from 1 is needed"))
    elif not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in tuple(_KINDS) for kind in kinds):
        expected = f"{' or '.join(_KINDS)} is needed for each of {num_layers} layers"
        faults.append(ConfigFault("layer_types", kinds, expected))
    else:
        return kinds
    return []


_NORMED = Head(
    dense="head.dense",
    activation="gelu",
    norm="head.norm",
    output="classifier",
    has_dense_bias=False,
    has_norm_bias=False,
    config_names={
        "activation": "classifier_activation",
        "has_dense_bias": "classifier_bias",
        "has_norm_bias": "norm_bias",
    },
)
_HEADS: Mapping[HeadName, Head] = {
    "sequence_classification": replace(_NORMED, config_names={**_NORMED.config_names, "tokens": "classifier_pooling"}),
    "token_classification": replace(_NORMED, tokens="each"),
    "masked_lm": replace(
        _NORMED,
        output="decoder",
        tokens="each",
        is_tied=True,
        config_names={**_NORMED.config_names, "has_output_bias": "decoder_bias"},
    ),
}

MODERNBERT = Family(
    name="modernbert",
    config_names={
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "layer_norm_eps": "norm_eps",
        "activation": "hidden_activation",
        "pad_token_id": "pad_token_id",
        "has_norm_bias": "norm_bias",
        "has_attention_bias": "attention_bias",
        "has_ffn_bias": "mlp_bias",
    },
    config_defaults={
        "max_positions": 8192, "layer_norm_eps": 1e-5, "activation": "gelu", "pad_token_id": 50283,
        "has_norm_bias": False, "has_attention_bias": False, "has_ffn_bias": False,
        "num_token_types": 0, "positions": "rotary", "norm": "pre", "has_first_norm": False, "is_ffn_gated": True,
    },
    # Older spellings of rotations that are stretched, or of a part of each head.
    fixed={"rope_scaling": None, "partial_rotary_factor": 1},
    read_more=_read_more,
    weight_names={"embeddings.word.weight": "embeddings.tok_embeddings.weight"}
    | with_bias(
        {
            "embeddings.norm": "embeddings.norm",
            "layers.{i}.attention.query": "layers.{i}.attn.Wqkv",
            "layers.{i}.attention.key": "layers.{i}.attn.Wqkv",
            "layers.{i}.attention.value": "layers.{i}.attn.Wqkv",
            "layers.{i}.attention.output": "layers.{i}.attn.Wo",
            "layers.{i}.attention_norm": "layers.{i}.attn_norm",
            "layers.{i}.ffn.gate": "layers.{i}.mlp.Wi",
            "layers.{i}.ffn.up": "layers.{i}.mlp.Wi",
            "layers.{i}.ffn.down": "layers.{i}.mlp.Wo",
            "layers.{i}.ffn_norm": "layers.{i}.mlp_norm",
            "final_norm": "final_norm",
        }
    ),
    weight_rows={
        **FUSED_QKV,
        "layers.{i}.ffn.gate": Rows(0, 2),
        "layers.{i}.ffn.up": Rows(1, 2),
    },
    layer_prefix="layers.{i}.",
    prefixes=("", "model.", "0.auto_model."),
    unused=("head.", "decoder."),
    heads=_HEADS,
)  # fmt: skip
