"""A config.json with a wrong value: each is told by file, key and value, all of them at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.errors import ExportError
from export.texts.read.model import read_model
from models.families.bert import BERT
from models.families.family import ConfigError
from tests.exporting.bundles import edited

POOLING = "1_Pooling/config.json"
PROMPTS = "config_sentence_transformers.json"
ST_CONFIG = "sentence_bert_config.json"


def config_faults(**values: Any) -> dict[str, tuple[Any, str]]:
    """What is refused of an otherwise right config.json: key → the value told, and what is expected."""
    config = {
        "model_type": "bert", "vocab_size": 104, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "hidden_act": "gelu", "pad_token_id": 0,
    }  # fmt: skip
    try:
        BERT.read_config(config | values)
    except ConfigError as error:
        return {fault.key: (fault.value, fault.expected) for fault in error.faults}
    return {}


COUNTS = [key for field, key in BERT.config_names.items() if field not in ("layer_norm_eps", "activation")]
ODD = st.one_of(
    st.text(max_size=3), st.booleans(), st.floats(), st.integers(max_value=-1), st.integers(min_value=2**31),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)  # fmt: skip


@given(key=st.sampled_from(COUNTS), value=ODD)
def test_a_number_of_the_config_that_is_not_whole_is_named(key: str, value: Any) -> None:
    found = config_faults(**{key: value})
    assert list(found) == [key]
    assert found[key][0] is value
    assert "a whole number from" in found[key][1]


@given(
    value=st.one_of(st.text(max_size=3), st.booleans(), st.lists(st.integers()), st.integers(), st.floats(max_value=0))
)
def test_an_epsilon_that_is_none_is_named(value: Any) -> None:
    assert list(config_faults(layer_norm_eps=value)) == ["layer_norm_eps"]


@given(value=st.one_of(st.text(max_size=3), st.booleans(), st.lists(st.text(max_size=4), min_size=1), st.integers()))
def test_an_activation_that_is_none_is_named(value: Any) -> None:
    assert list(config_faults(hidden_act=value)) == ["hidden_act"]


@pytest.mark.parametrize(
    ("values", "key", "expected"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads", "a divisor of hidden_size, which is 32"),
        ({"pad_token_id": 104}, "pad_token_id", "an id below vocab_size, which is 104"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type", "absolute"),
        ({"position_embedding_type": [1]}, "position_embedding_type", "absolute"),
        ({"model_type": "bert", "hidden_size": None}, "hidden_size", "a whole number from 1"),
    ],
)
def test_values_that_do_not_go_together_are_named(values: dict[str, Any], key: str, expected: str) -> None:
    found = config_faults(**values)
    assert list(found) == [key]
    assert expected in found[key][1]


def test_all_wrong_values_of_a_config_are_told_at_once(tiny_models: Path, tmp_path: Path) -> None:
    values = {"num_hidden_layers": 2.5, "hidden_size": "32", "hidden_act": [1], "layer_norm_eps": -1}
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {"config.json": values})
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert set(caught.value.faults) == {
        "config.json: num_hidden_layers: a whole number from 1 is needed, got 2.5",
        'config.json: hidden_size: a whole number from 1 is needed, got "32"',
        "config.json: hidden_act: one of gelu, gelu_python, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, silu, swish "
        "is needed, got [1]",
        "config.json: layer_norm_eps: a number above 0 and below 1 is needed, got -1",
    }


def test_a_number_of_layers_is_held_against_the_file_before_anything_is_listed(
    tiny_models: Path, tmp_path: Path
) -> None:
    edits = {"config.json": {"num_hidden_layers": 2**31 - 1}}
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", edits)
    started_s = time.process_time()
    with pytest.raises(
        ExportError, match=r"num_hidden_layers: the 2 layers in model\.safetensors are needed, got 2147"
    ):
        read_model(folder)
    assert time.process_time() - started_s < 10, "names were listed"
