"""RoBERTa (Liu et al., 2019): BERT whose positions begin after the padding id; and what is built the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.families.bert import CONFIG_DEFAULTS, CONFIG_NAMES, LAYER_PREFIX, WEIGHT_NAMES
from models.families.family import Family
from models.families.head import Head
from models.head_config import HeadName


def _derive(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of the padding id, and those before it, are no positions."""
    return {**values, "position_offset": values["pad_token_id"] + 1}


HEADS: Mapping[HeadName, Head] = {
    "sequence_classification": Head(dense="classifier.dense", activation="tanh", output="classifier.out_proj"),
    "token_classification": Head(output="classifier", tokens="each"),
    "masked_lm": Head(
        dense="lm_head.dense",
        activation="gelu",
        norm="lm_head.layer_norm",
        output="lm_head.decoder",
        other_names={"head.output.bias": "lm_head.bias"},
        tokens="each",
        is_tied=True,
    ),
}
ROBERTA = Family(
    name="roberta",
    config_names=CONFIG_NAMES,
    config_defaults=CONFIG_DEFAULTS | {"pad_token_id": 1},
    weight_names=WEIGHT_NAMES,
    layer_prefix=LAYER_PREFIX,
    prefixes=("", "roberta.", "model.", "0.auto_model."),
    unused=("pooler.", "lm_head.", "embeddings.position_ids"),
    heads=HEADS,
    nullable=(),
    derive=_derive,
)
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta")
CAMEMBERT = replace(ROBERTA, name="camembert")
