"""DistilBERT (Sanh et al., 2019): BERT without token types, under names of its own.

Sinusoidal positions, where a model has them, are stored in its file like learned ones.
"""

from __future__ import annotations

from models.families.family import Family, with_bias
from models.families.head import Head

DISTILBERT = Family(
    name="distilbert",
    config_names={
        "vocab_size": "vocab_size",
        "dim": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "ffn_dim": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "activation": "activation",
        "pad_token_id": "pad_token_id",
    },
    config_aliases={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    config_defaults={"layer_norm_eps": 1e-12, "num_token_types": 0, "pad_token_id": 0, "activation": "gelu"},
    weight_names={
        "embeddings.word.weight": "embeddings.word_embeddings.weight",
        "embeddings.position.weight": "embeddings.position_embeddings.weight",
    }
    | with_bias(
        {
            "embeddings.norm": "embeddings.LayerNorm",
            "layers.{i}.attention.query": "transformer.layer.{i}.attention.q_lin",
            "layers.{i}.attention.key": "transformer.layer.{i}.attention.k_lin",
            "layers.{i}.attention.value": "transformer.layer.{i}.attention.v_lin",
            "layers.{i}.attention.output": "transformer.layer.{i}.attention.out_lin",
            "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
            "layers.{i}.ffn.up": "transformer.layer.{i}.ffn.lin1",
            "layers.{i}.ffn.down": "transformer.layer.{i}.ffn.lin2",
            "layers.{i}.ffn_norm": "transformer.layer.{i}.output_layer_norm",
        }
    ),
    layer_prefix="transformer.layer.{i}.",
    prefixes=("", "distilbert.", "model.", "0.auto_model."),
    unused=(
        "vocab_transform.",
        "vocab_layer_norm.",
        "vocab_projector.",
        "embeddings.position_ids",
    ),
    heads={
        "sequence_classification": Head(dense="pre_classifier", activation="relu", output="classifier"),
        "token_classification": Head(output="classifier", tokens="each"),
        "masked_lm": Head(
            dense="vocab_transform",
            activation="encoder",
            norm="vocab_layer_norm",
            output="vocab_projector",
            tokens="each",
            is_tied=True,
        ),
    },
)
