"""ALBERT (Lan et al., 2020): tables narrower than the layers, and layers that share their weights in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.families.bert import CONFIG_DEFAULTS, CONFIG_NAMES
from models.families.family import ConfigError, ConfigFault, Family, with_bias
from models.families.head import Head

_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.{inner}"
# No file says how many layers there are, and each is a part of the graph.
_MAX_LAYERS = 1_000


def _derive(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A step of the encoder is a whole group: as many layers as it has."""
    steps, groups, inner = (values[name] for name in ("num_layers", "num_layer_groups", "group_layers"))
    if steps * inner > _MAX_LAYERS:
        expected = f"with inner_group_num, which is {inner}, at most {_MAX_LAYERS} layers are supported"
        raise ConfigError([ConfigFault("num_hidden_layers", steps, expected)])
    if groups > steps:
        expected = f"at most num_hidden_layers, which is {steps}, is needed: each group is used"
        raise ConfigError([ConfigFault("num_hidden_groups", groups, expected)])
    return {**values, "num_layers": steps * inner}


ALBERT = Family(
    name="albert",
    config_names=CONFIG_NAMES
    | {
        "embedding_dim": "embedding_size",
        "num_layer_groups": "num_hidden_groups",
        "group_layers": "inner_group_num",
    },
    config_defaults=CONFIG_DEFAULTS
    | {"embedding_dim": 128, "num_layer_groups": 1, "group_layers": 1, "activation": "gelu_new"},
    weight_names={
        "embeddings.word.weight": "embeddings.word_embeddings.weight",
        "embeddings.position.weight": "embeddings.position_embeddings.weight",
        "embeddings.token_type.weight": "embeddings.token_type_embeddings.weight",
    }
    | with_bias(
        {
            "embeddings.norm": "embeddings.LayerNorm",
            "embeddings.project": "encoder.embedding_hidden_mapping_in",
            "layers.{i}.attention.query": f"{_LAYER}.attention.query",
            "layers.{i}.attention.key": f"{_LAYER}.attention.key",
            "layers.{i}.attention.value": f"{_LAYER}.attention.value",
            "layers.{i}.attention.output": f"{_LAYER}.attention.dense",
            "layers.{i}.attention_norm": f"{_LAYER}.attention.LayerNorm",
            "layers.{i}.ffn.up": f"{_LAYER}.ffn",
            "layers.{i}.ffn.down": f"{_LAYER}.ffn_output",
            "layers.{i}.ffn_norm": f"{_LAYER}.full_layer_layer_norm",
        }
    ),
    layer_prefix="encoder.albert_layer_groups.{i}.",
    prefixes=("", "albert.", "model.", "0.auto_model."),
    unused=("pooler.", "predictions.", "sop_classifier.", "embeddings.position_ids"),
    heads={
        "sequence_classification": Head(dense="{encoder}pooler", activation="tanh", output="classifier"),
        "token_classification": Head(output="classifier", tokens="each"),
        "masked_lm": Head(
            dense="predictions.dense",
            dense_dim="table_dim",
            activation="encoder",
            norm="predictions.LayerNorm",
            output="predictions.decoder",
            other_names={"head.output.bias": "predictions.bias"},
            tokens="each",
            is_tied=True,
        ),
    },
    derive=_derive,
)
