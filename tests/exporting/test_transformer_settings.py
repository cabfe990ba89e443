"""The settings file of sentence-transformers' Transformer: which one is read, and what in it changes the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from export.bundle import export_model
from export.errors import ExportError
from export.texts.read.hub import needed_files
from export.texts.read.model import read_model
from tests.exporting.bundles import TEXTS, edited, encode

NEWEST = "sentence_bert_config.json"
# In the order in which sentence-transformers looks for them.
NAMES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
LOWER = {"max_seq_length": 16, "do_lower_case": True}
CASED = {"tokenizer_config.json": {"do_lower_case": False}}


def with_settings(tiny_models: Path, folder: Path, *files: tuple[str, dict[str, Any]]) -> Path:
    """A tiny model that has these settings files alone, and a tokenizer that keeps case."""
    edited(tiny_models / "bert_mean", folder, CASED)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / NEWEST).unlink()
    for name, values in files:
        (folder / name).write_text(json.dumps(values))
    return folder


def refused(folder: Path) -> list[str]:
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    return list(caught.value.faults)


@pytest.mark.parametrize("first", range(len(NAMES)))
def test_the_settings_are_those_that_sentence_transformers_takes(tiny_models: Path, tmp_path: Path, first: int) -> None:
    others = [(name, {"max_seq_length": 32, "do_lower_case": False}) for name in NAMES[first + 1 :]]
    empty: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NAMES[:first][:1]]
    folder = with_settings(tiny_models, tmp_path / "model", *empty, (NAMES[first], LOWER), *others)
    model, theirs = read_model(folder), SentenceTransformer(str(folder), device="cpu")
    assert (model.limit.max_tokens, model.limit.source) == (theirs.max_seq_length, f"{NAMES[first]}: max_seq_length")
    text = "Hello WORLD"
    ids = Tokenizer.from_buffer(model.tokenizer.content).encode(text).ids
    assert ids == theirs.preprocess([text])["input_ids"][0].tolist()
    assert NAMES[first] in model.sha256


def test_an_older_settings_file_gives_the_vectors_of_sentence_transformers(tiny_models: Path, tmp_path: Path) -> None:
    folder = with_settings(tiny_models, tmp_path / "model", ("sentence_xlm-roberta_config.json", LOWER))
    export_model(str(folder), tmp_path / "out")
    texts = [*TEXTS, "Hello WORLD " * 20]
    expected = np.asarray(SentenceTransformer(str(folder), device="cpu").encode(texts))
    np.testing.assert_allclose(encode(tmp_path / "out", texts), expected, atol=1e-5)


def test_the_hub_gives_every_file_that_decides() -> None:
    files = [*NAMES, "adapter_config.json", "README.md"]
    assert set(needed_files(files, [""])) == {*NAMES, "adapter_config.json"}


def test_what_sentence_transformers_saves_means_nothing_special(tiny_models: Path, tmp_path: Path) -> None:
    """Among them the keys that a newer version writes for every model, with the values of this one."""
    theirs = SentenceTransformer(str(tiny_models / "bert_mean"), device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    keys = json.loads((tmp_path / "saved" / NEWEST).read_text()).keys()
    assert {"transformer_task", "modality_config", "module_output_name"} <= keys
    model = read_model(tmp_path / "saved")
    assert model.modes == ("mean",)
    assert model.warnings == ()


@pytest.mark.parametrize(
    "values",
    [
        {"model_args": {"trust_remote_code": True}},
        {"model_args": {}, "tokenizer_args": {"trust_remote_code": True}, "config_args": {"trust_remote_code": True}},
        {"model_kwargs": {"attn_implementation": "sdpa", "dtype": "auto", "torch_dtype": "float32"}},
        {"model_kwargs": {"add_pooling_layer": False}, "config_kwargs": None, "unpad_inputs": False},
        {"query_length": None, "document_length": None, "query_expansion": None, "processing_kwargs": {}},
    ],
)
def test_settings_that_change_nothing_are_taken(tiny_models: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    folder = with_settings(tiny_models, tmp_path / "model", (NEWEST, {"max_seq_length": 64, **values}))
    assert read_model(folder).limit.max_tokens == 64


def _takes(output: Any) -> dict[str, Any]:
    return {"text": {"method": "forward", "method_output_name": output}}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"modality_config": _takes("pooler_output")}, ("modality_config", "last_hidden_state", "pooler_output")),
        ({"modality_config": _takes(["hidden_states", 0])}, ("modality_config", '["hidden_states", 0]')),
        ({"modality_config": {**_takes("last_hidden_state"), "message": {}}}, ("modality_config", "got")),
        ({"module_output_name": "sentence_embedding"}, ("module_output_name", '"sentence_embedding"')),
        ({"config_args": {"num_hidden_layers": 1}}, ("config_args: num_hidden_layers", "got 1")),
        ({"config_kwargs": {"num_hidden_layers": 1}}, ("config_kwargs: num_hidden_layers", "got 1")),
        ({"model_args": {"num_hidden_layers": 1}}, ("model_args: num_hidden_layers", "got 1")),
        ({"model_kwargs": {"dtype": "float16"}}, ("model_kwargs: dtype", '"float16"')),
        ({"model_kwargs": {"torch_dtype": "bfloat16"}}, ("model_kwargs: torch_dtype", '"bfloat16"')),
        ({"model_kwargs": {"add_pooling_layer": 0}}, ("model_kwargs: add_pooling_layer", "got 0")),
        ({"model_kwargs": [1]}, ("model_kwargs", "an object is needed", "[1]")),
        ({"processor_kwargs": {"trust_remote_code": True, "use_fast": False}}, ("processor_kwargs", "use_fast")),
        ({"query_length": 8}, ("query_length", "null is needed", "got 8")),
        ({"banana": 1}, ("banana", "only config_args", '{"banana": 1}')),
    ],
)
def test_settings_that_would_change_the_vectors_are_refused(
    tiny_models: Path, tmp_path: Path, values: dict[str, Any], parts: tuple[str, ...]
) -> None:
    [fault] = refused(with_settings(tiny_models, tmp_path / "model", (NAMES[1], values)))
    assert all(part in fault for part in (f"{NAMES[1]}: ", *parts)), fault


def test_an_adapter_is_refused(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {"adapter_config.json": {"peft_type": "LORA"}})
    [fault] = refused(folder)
    assert fault.startswith("adapter_config.json: an adapter (PEFT)")


def test_a_file_that_one_module_needs_and_another_does_not_is_missing(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = modules[2]["path"] = "both"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "both").mkdir()
    [fault] = refused(folder)
    assert fault.startswith("both/config.json: missing")
