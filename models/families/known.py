"""The families that can be served, by the `model_type` of their config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.families.albert import ALBERT
from models.families.bert import BERT
from models.families.distilbert import DISTILBERT
from models.families.electra import ELECTRA
from models.families.family import ConfigError, ConfigFault, Family
from models.families.modernbert import MODERNBERT
from models.families.mpnet import MPNET
from models.families.nomic_bert import NOMIC_BERT
from models.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

_ALL = (ALBERT, BERT, CAMEMBERT, DISTILBERT, ELECTRA, MODERNBERT, MPNET, NOMIC_BERT, ROBERTA, XLM_ROBERTA)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a config.json. Raises ConfigError naming its model_type and what is supported."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError([ConfigFault("model_type", model_type, f"one of {', '.join(sorted(FAMILIES))} is needed")])
    return FAMILIES[model_type]
