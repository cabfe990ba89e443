"""What a config.json of each family means: read as `transformers` reads it, or refused by key and value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from models.config import EncoderConfig
from models.families.family import ConfigError
from models.families.known import FAMILIES, find_family
from models.families.parameters import parameter_shapes
from tests.encoders.references import REFERENCES
from tests.fixtures.command import ROOT

# As small as it gets; each family reads the keys that it has.
SMALL: dict[str, Any] = {
    "vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 16,
    "max_position_embeddings": 20, "embedding_size": 8, "num_hidden_groups": 2, "inner_group_num": 1,
}  # fmt: skip
SMALL_DISTILBERT: dict[str, Any] = {
    "vocab_size": 30, "dim": 12, "n_layers": 4, "n_heads": 3, "hidden_dim": 16, "max_position_embeddings": 20,
}  # fmt: skip


def small(model_type: str, **values: Any) -> dict[str, Any]:
    return {"model_type": model_type} | (SMALL_DISTILBERT if model_type == "distilbert" else SMALL) | values


def read(config: dict[str, Any]) -> EncoderConfig:
    return find_family(config).read_config(config)


def faults_of(config: dict[str, Any]) -> dict[str, str]:
    """What is refused: key → what is expected."""
    with pytest.raises(ConfigError) as caught:
        read(config)
    return {fault.key: fault.expected for fault in caught.value.faults}


@pytest.mark.parametrize("name", REFERENCES)
def test_absent_keys_have_the_defaults_of_transformers(name: str) -> None:
    """But for the sizes, which every file says: read what is left when all that may be absent is."""
    reference = REFERENCES[name]
    whole = reference.config(0).to_dict()
    default = type(reference.config(0))()
    family = FAMILIES[whole["model_type"]]
    keys = {family.config_names[field] for field in family.config_defaults if field in family.config_names}
    kept = {key: value for key, value in whole.items() if key not in keys}
    wide = {"vocab_size": 60_000, "num_hidden_layers": 4, "n_layers": 4, "layer_types": None, "dtype": None}
    same = {key: getattr(default, key) for key in keys}
    assert read(kept | wide) == read(kept | wide | same)


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert"])
@pytest.mark.parametrize("pad", [0, 1, 5])
def test_positions_begin_after_the_padding_id(model_type: str, pad: int) -> None:
    config = read(small(model_type, pad_token_id=pad))
    assert (config.family, config.pad_token_id, config.position_offset) == (model_type, pad, pad + 1)
    assert config.max_tokens == 20 - pad - 1


@pytest.mark.parametrize("pad", [1, None])
def test_positions_of_mpnet_begin_at_2(pad: int | None) -> None:
    config = read(small("mpnet", pad_token_id=pad))
    assert (config.pad_token_id, config.position_offset, config.max_tokens) == (1, 2, 18)


def test_what_only_some_families_have_is_not_said_of_others() -> None:
    said = {name: set(read(small(name)).to_dict()) for name in FAMILIES if name in SAID}
    assert {name: fields - said["bert"] for name, fields in said.items()} == SAID
    assert all(read(small(name)) == EncoderConfig.from_dict(read(small(name)).to_dict()) for name in SAID)


SAID: dict[str, set[str]] = {
    "bert": set(),
    "roberta": set(),
    "distilbert": set(),
    "mpnet": {"num_relative_buckets"},
    "electra": {"embedding_dim"},
    "albert": {"embedding_dim", "num_layer_groups"},
}


def test_tables_as_wide_as_the_layers_are_projected_by_albert_alone() -> None:
    assert read(small("electra", embedding_size=12)).embedding_dim == 0
    assert read(small("albert", embedding_size=12)).embedding_dim == 12


@pytest.mark.parametrize(
    ("steps", "groups", "inner", "sets"),
    [
        (4, 1, 1, [0, 0, 0, 0]),
        (4, 2, 1, [0, 0, 1, 1]),
        (5, 2, 1, [0, 0, 0, 1, 1]),
        (3, 3, 1, [0, 1, 2]),
        (3, 2, 2, [0, 1, 0, 1, 2, 3]),
        # 14 groups in 18 steps: where 14 · 9 / 18 is 7, 9 / (18 / 14) is a bit less.
        (18, 14, 1, [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 10, 10, 11, 12, 13]),
    ],
)
def test_layers_of_a_group_share_their_weights(steps: int, groups: int, inner: int, sets: list[int]) -> None:
    values = {"num_hidden_layers": steps, "num_hidden_groups": groups, "inner_group_num": inner}
    config = read(small("albert", **values))
    assert config.num_layers == steps * inner
    assert [config.weight_set(layer) for layer in range(config.num_layers)] == sets
    assert {name.split(".")[1] for name in parameter_shapes(config) if name.startswith("layers.")} == {
        str(number) for number in range(groups * inner)
    }


@pytest.mark.parametrize(
    ("model_type", "values", "key", "expected"),
    [
        ("roberta", {"pad_token_id": None}, "pad_token_id", "a whole number from 0"),
        ("roberta", {"pad_token_id": 30}, "pad_token_id", "an id below vocab_size, which is 30"),
        ("xlm-roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type", "absolute is needed"),
        ("roberta", {"hidden_act": "mish"}, "hidden_act", "one of gelu"),
        ("roberta", {"hidden_act": None}, "hidden_act", "one of gelu"),
        ("roberta", {"type_vocab_size": 0}, "type_vocab_size", "a whole number from 1"),
        ("distilbert", {"activation": "tanh"}, "activation", "one of gelu"),
        ("distilbert", {"n_heads": 5}, "n_heads", "a divisor of dim, which is 12"),
        ("distilbert", {"hidden_size": 24}, "hidden_size", "another name of dim, which is 12"),
        ("distilbert", {"num_attention_heads": 4}, "num_attention_heads", "another name of n_heads, which is 3"),
        ("mpnet", {"relative_attention_num_buckets": 31}, "relative_attention_num_buckets", "at least 32 is needed"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id", "1 is needed: transformers gives no position"),
        ("electra", {"embedding_size": 0}, "embedding_size", "a whole number from 1"),
        ("albert", {"embedding_size": "8"}, "embedding_size", "a whole number from 1"),
        ("albert", {"num_hidden_groups": 5}, "num_hidden_groups", "at most num_hidden_layers, which is 4"),
        ("albert", {"num_hidden_layers": 2**31 - 1}, "num_hidden_layers", "at most 1000 layers are supported"),
        ("albert", {"inner_group_num": 2**20}, "num_hidden_layers", "with inner_group_num, which is 1048576"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_key(
    model_type: str, values: dict[str, Any], key: str, expected: str
) -> None:
    found = faults_of(small(model_type, **values))
    assert list(found) == [key]
    assert expected in found[key]


def test_another_name_of_a_key_is_read_where_the_key_is_absent() -> None:
    config = {key: value for key, value in small("distilbert").items() if key not in ("dim", "n_layers", "n_heads")}
    same = {"hidden_size": 12, "num_hidden_layers": 4, "num_attention_heads": 3}
    assert read(config | same) == read(small("distilbert")) == read(small("distilbert") | same)


def test_the_document_lists_every_family() -> None:
    text = (ROOT / "docs" / "models.md").read_text().split("\n## Families\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) - {"model_type"} == set(FAMILIES)


@pytest.mark.parametrize("model_type", ["xlm-roberta-xl", "roberta-prelayernorm", "deberta-v2", "t5", "BERT", None])
def test_another_family_is_refused_by_its_name(model_type: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        read(small("bert") | {"model_type": model_type})
    (fault,) = caught.value.faults
    assert (fault.key, fault.value) == ("model_type", model_type)
    assert all(name in fault.expected for name in FAMILIES)
