"""ELECTRA (Clark et al., 2020): BERT whose tables may be narrower than its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.families.bert import CONFIG_DEFAULTS, CONFIG_NAMES, LAYER_PREFIX, WEIGHT_NAMES
from models.families.family import Family, with_bias
from models.families.head import Head


def _derive(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tables as wide as the layers are not projected."""
    return {**values, "embedding_dim": 0} if values["embedding_dim"] == values["dim"] else values


ELECTRA = Family(
    name="electra",
    config_names=CONFIG_NAMES | {"embedding_dim": "embedding_size"},
    config_defaults=CONFIG_DEFAULTS | {"embedding_dim": 128},
    weight_names=WEIGHT_NAMES | with_bias({"embeddings.project": "embeddings_project"}),
    layer_prefix=LAYER_PREFIX,
    prefixes=("", "electra.", "model.", "0.auto_model."),
    unused=(
        "discriminator_predictions.",
        "generator_predictions.",
        "generator_lm_head.",
        "sequence_summary.",
        "embeddings.position_ids",
    ),
    heads={
        "sequence_classification": Head(dense="classifier.dense", activation="gelu", output="classifier.out_proj"),
        "token_classification": Head(output="classifier", tokens="each"),
        "masked_lm": Head(
            dense="generator_predictions.dense",
            dense_dim="table_dim",
            activation="gelu",
            norm="generator_predictions.LayerNorm",
            output="generator_lm_head",
            tokens="each",
            is_tied=True,
        ),
    },
    derive=_derive,
)
