"""MPNet (Song et al., 2020): no token types, and a bias by relative position that all layers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.buckets import NUM_BUCKETS
from models.families.bert import CONFIG_DEFAULTS, CONFIG_NAMES, LAYER_PREFIX, WEIGHT_NAMES
from models.families.family import ConfigError, ConfigFault, Family, with_bias
from models.families.roberta import HEADS

# In transformers' code, whatever the config says.
_PADDING = 1
_BUCKETS = "relative_attention_num_buckets"


def _derive(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Whatever the config says, distances fall into as many buckets as the published model has, and id 1 is padding."""
    faults = []
    if values["num_relative_buckets"] < NUM_BUCKETS:
        faults.append(ConfigFault(_BUCKETS, values["num_relative_buckets"], f"at least {NUM_BUCKETS} is needed"))
    if values["pad_token_id"] != _PADDING:
        expected = f"{_PADDING} is needed: transformers gives no position to the tokens of that id"
        faults.append(ConfigFault("pad_token_id", values["pad_token_id"], expected))
    if faults:
        raise ConfigError(faults)
    return values


MPNET = Family(
    name="mpnet",
    config_names={field: key for field, key in CONFIG_NAMES.items() if field != "num_token_types"}
    | {"num_relative_buckets": _BUCKETS},
    config_defaults=CONFIG_DEFAULTS
    | {
        "num_token_types": 0,
        "pad_token_id": _PADDING,
        "position_offset": _PADDING + 1,
        "num_relative_buckets": NUM_BUCKETS,
    },
    weight_names=WEIGHT_NAMES
    | {"relative_bias.weight": "encoder.relative_attention_bias.weight"}
    | with_bias(
        {
            "layers.{i}.attention.query": "encoder.layer.{i}.attention.attn.q",
            "layers.{i}.attention.key": "encoder.layer.{i}.attention.attn.k",
            "layers.{i}.attention.value": "encoder.layer.{i}.attention.attn.v",
            "layers.{i}.attention.output": "encoder.layer.{i}.attention.attn.o",
            "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
        }
    ),
    layer_prefix=LAYER_PREFIX,
    prefixes=("", "mpnet.", "model.", "0.auto_model."),
    unused=("pooler.", "lm_head.", "embeddings.position_ids"),
    heads=HEADS,
    derive=_derive,
)
