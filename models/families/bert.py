"""BERT (Devlin et al., 2019): post-norm layers, learned positions, two token types."""

from __future__ import annotations

from collections.abc import Mapping

from models.families.family import Family, with_bias
from models.families.head import Head
from models.head_config import HeadName

CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_token_types": "type_vocab_size",
    "layer_norm_eps": "layer_norm_eps",
    "activation": "hidden_act",
    "pad_token_id": "pad_token_id",
}
CONFIG_DEFAULTS = {"layer_norm_eps": 1e-12, "num_token_types": 2, "pad_token_id": 0, "activation": "gelu"}
WEIGHT_NAMES = {
    "embeddings.word.weight": "embeddings.word_embeddings.weight",
    "embeddings.position.weight": "embeddings.position_embeddings.weight",
    "embeddings.token_type.weight": "embeddings.token_type_embeddings.weight",
} | with_bias(
    {
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.query": "encoder.layer.{i}.attention.self.query",
        "layers.{i}.attention.key": "encoder.layer.{i}.attention.self.key",
        "layers.{i}.attention.value": "encoder.layer.{i}.attention.self.value",
        "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
        "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "layers.{i}.ffn.up": "encoder.layer.{i}.intermediate.dense",
        "layers.{i}.ffn.down": "encoder.layer.{i}.output.dense",
        "layers.{i}.ffn_norm": "encoder.layer.{i}.output.LayerNorm",
    }
)
LAYER_PREFIX = "encoder.layer.{i}."

HEADS: Mapping[HeadName, Head] = {
    "sequence_classification": Head(dense="{encoder}pooler.dense", activation="tanh", output="classifier"),
    "token_classification": Head(output="classifier", tokens="each"),
    "masked_lm": Head(
        dense="cls.predictions.transform.dense",
        activation="encoder",
        norm="cls.predictions.transform.LayerNorm",
        output="cls.predictions.decoder",
        other_names={"head.output.bias": "cls.predictions.bias"},
        tokens="each",
        is_tied=True,
    ),
}

BERT = Family(
    name="bert",
    config_names=CONFIG_NAMES,
    config_defaults=CONFIG_DEFAULTS,
    weight_names=WEIGHT_NAMES,
    layer_prefix=LAYER_PREFIX,
    prefixes=("", "bert.", "model.", "0.auto_model."),
    unused=("pooler.", "cls.", "embeddings.position_ids"),
    heads=HEADS,
)
