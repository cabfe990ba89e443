"""A model directory as it is read: pooling, length, prompts, tokenizer; every fault named by file, key and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from export.errors import ExportError
from export.texts.read.model import Model, read_model
from tests.exporting.bundles import edited

POOLING = "1_Pooling/config.json"
PROMPTS = "config_sentence_transformers.json"
ST_CONFIG = "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("name", "modes", "normalize"),
    [("bert_mean", ("mean",), True), ("bert_cls", ("cls",), False)],
)
def test_the_old_and_the_new_schema_say_the_same(
    tiny_models: Path, name: str, modes: tuple[str, ...], normalize: bool
) -> None:
    old, new = read_model(tiny_models / name), read_model(tiny_models / f"{name}_new")
    assert old.pooling == new.pooling
    assert (new.pooling.modes, new.pooling.source, new.normalize) == (modes, POOLING, normalize)
    assert (old.limit.max_tokens, old.limit.source) == (64, f"{ST_CONFIG}: max_seq_length")


def test_without_modules_the_documented_default_holds(tiny_models: Path) -> None:
    model = read_model(tiny_models / "xenc")
    assert (model.pooling.modes, model.pooling.source, model.normalize) == (("mean",), "default", False)
    assert model.limit.source == "tokenizer_config.json: model_max_length"


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode": ["max", "cls"]}, ("max", "cls")),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, ("mean_sqrt_len",)),
        ({"pooling_mode": None, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode": None, "pooling_mode_lasttoken": True}, ("lasttoken",)),
        ({"pooling_mode": None, "pooling_mode_mean_tokens": False}, ("mean",)),
    ],
)
def test_several_modes_are_concatenated_as_sentence_transformers_does(
    tiny_models: Path, tmp_path: Path, config: dict[str, Any], modes: tuple[str, ...]
) -> None:
    folder = edited(tiny_models / "bert_mean_new", tmp_path / "model", {POOLING: config})
    assert read_model(folder).pooling.modes == modes


@pytest.mark.parametrize(
    ("edits", "max_tokens", "origin"),
    [
        ({ST_CONFIG: {"max_seq_length": 16}}, 16, f"{ST_CONFIG}: max_seq_length"),
        ({"tokenizer_config.json": {"model_max_length": 32}}, 32, "tokenizer_config.json: model_max_length"),
        ({ST_CONFIG: {"max_seq_length": None}}, 64, "tokenizer_config.json: model_max_length"),
        (
            {ST_CONFIG: {"max_seq_length": 512}, "tokenizer_config.json": {"model_max_length": 1e30}},
            64,
            "config.json: max_position_embeddings",
        ),
    ],
)
def test_the_limit_is_the_least_of_what_is_set(
    tiny_models: Path, tmp_path: Path, edits: dict[str, dict[str, Any]], max_tokens: int, origin: str
) -> None:
    model = read_model(edited(tiny_models / "bert_mean", tmp_path / "model", edits))
    assert (model.limit.max_tokens, model.limit.source) == (max_tokens, origin)


def test_truncation_baked_into_the_tokenizer_never_counts(minilm_dir: Path) -> None:
    assert json.loads((minilm_dir / "tokenizer.json").read_text("utf-8"))["truncation"]["max_length"] == 128
    model = read_model(minilm_dir)
    assert (model.limit.max_tokens, model.limit.source) == (256, f"{ST_CONFIG}: max_seq_length")
    assert model.tokenizer.content == (minilm_dir / "tokenizer.json").read_bytes()
    assert model.warnings == ()


def test_prompts_are_kept(tiny_models: Path, tmp_path: Path) -> None:
    values = {"prompts": {"query": "a query ", "doc": None}, "default_prompt_name": "query"}
    edits: dict[str, dict[str, Any]] = {PROMPTS: values, POOLING: {"include_prompt": False}}
    model = read_model(edited(tiny_models / "bert_mean_new", tmp_path / "model", edits))
    assert model.prompts.texts == {"query": "a query ", "doc": ""}
    assert model.prompts.default == "query"
    assert not model.pooling.include_prompt


def test_the_transformer_may_lie_in_its_own_folder(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", ST_CONFIG):
        (folder / name).rename(folder / "0_Transformer" / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    model = read_model(folder)
    assert model.limit.source == f"0_Transformer/{ST_CONFIG}: max_seq_length"
    assert "0_Transformer/model.safetensors" in model.sha256


def ids(model: Model, text: str) -> list[int]:
    found: list[int] = Tokenizer.from_buffer(model.tokenizer.content).encode(text).ids
    return found


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("in_config", [True, False, None])
@pytest.mark.parametrize("in_pipeline", [True, False])
def test_lower_casing_equals_sentence_transformers(
    tiny_models: Path, tmp_path: Path, in_file: bool, in_config: bool | None, in_pipeline: bool
) -> None:
    edits: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"do_lower_case": in_config},
        ST_CONFIG: {"do_lower_case": in_pipeline},
    }
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", edits)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["normalizer"]["lowercase"] = in_file
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    model = read_model(folder)
    text = "Hello WORLD héllo a CAT 中国 İ"
    expected = SentenceTransformer(str(folder), device="cpu").preprocess([text])["input_ids"][0].tolist()
    assert ids(model, text) == expected
    is_unchanged = model.tokenizer.content == (folder / "tokenizer.json").read_bytes()
    assert is_unchanged == (model.tokenizer.changes == ())


def test_a_vocabulary_beyond_the_word_table_is_a_warning(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    added = {**tokenizer["added_tokens"][0], "id": 104, "content": "[NEW]"}
    tokenizer["added_tokens"].append(added)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    [warning] = read_model(folder).warnings
    assert "ids up to 104, the word table has 104 rows" in warning


@pytest.mark.parametrize(
    ("edits", "parts"),
    [
        ({POOLING: {"pooling_mode": "banana"}}, (POOLING, "pooling_mode", '"banana"')),
        ({POOLING: {"pooling_mode": []}}, (POOLING, "pooling_mode", "[]")),
        ({POOLING: {"pooling_mode": 3}}, (POOLING, "pooling_mode", "3")),
        ({POOLING: {"embedding_dimension": 31}}, (POOLING, "embedding_dimension", "31", "32")),
        ({POOLING: {"include_prompt": "no"}}, (POOLING, "include_prompt", '"no"')),
        ({POOLING: {"pooling_mode_foo": True}}, (POOLING, "pooling_mode_foo", "true", "pooling_mode_mean_tokens")),
        ({POOLING: {"pooling_mode_cls_token": "false"}}, (POOLING, "pooling_mode_cls_token", '"false"')),
        ({PROMPTS: {"default_prompt_name": ["a"]}}, (PROMPTS, "default_prompt_name", '["a"]')),
        ({PROMPTS: {"prompts": {"query": 1}}}, (PROMPTS, "prompts", '{"query": 1}')),
        ({PROMPTS: {"default_prompt_name": "query"}}, (PROMPTS, "default_prompt_name", '"query"')),
        ({ST_CONFIG: {"max_seq_length": "256"}}, (ST_CONFIG, "max_seq_length", '"256"')),
        ({ST_CONFIG: {"max_seq_length": 2}}, (ST_CONFIG, "max_seq_length", "2")),
        ({"tokenizer_config.json": {"model_max_length": -1}}, ("tokenizer_config.json", "model_max_length", "-1")),
        ({"config.json": {"model_type": "gpt2"}}, ("config.json", "model_type", '"gpt2"', "bert", "--via torch")),
        ({"config.json": {"hidden_act": "mish"}}, ("config.json", "hidden_act", '"mish"')),
        ({"config.json": {"is_decoder": True}}, ("config.json", "is_decoder", "true")),
        ({"config.json": {"hidden_size": None}}, ("config.json", "hidden_size")),
        ({"config.json": {"hidden_size": 48}}, ("model.safetensors", "[104, 32]", "[104, 48]")),
        ({"config.json": {"num_hidden_layers": 3}}, ("model.safetensors", "encoder.layer.2.", "missing")),
        ({"config.json": {"max_position_embeddings": 2}}, ("config.json", "max_position_embeddings", "at least 3")),
    ],
)
def test_a_value_that_is_not_supported_is_named(
    tiny_models: Path, tmp_path: Path, edits: dict[str, dict[str, Any]], parts: tuple[str, ...]
) -> None:
    folder = edited(tiny_models / "bert_mean_new", tmp_path / "model", edits)
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("sentence_transformers.models.CNN", "sentence_transformers.models.CNN"),
        ("sentence_transformers.base.modules.router.Router", "sentence_transformers.base.modules.router.Router"),
        ("sentence_transformers.models.Transformer", '["Transformer", "Pooling", "Transformer"]'),
        ("sentence_transformers.models.Pooling", "any number of Dense and, if any, Normalize are needed"),
    ],
)
def test_a_module_that_is_not_supported_is_named(tiny_models: Path, tmp_path: Path, module: str, message: str) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = module
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match=r"modules\.json: type") as caught:
        read_model(folder)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "parts"),
    [
        ("config.json", b'{\n "a": 1,\n}', ("config.json", "line 3", "not JSON")),
        ("config.json", b"[" * 200_000, ("config.json", "nested too deeply")),
        ("config.json", b'{"hidden_size": ' + b"1" * 5_000 + b"}", ("config.json", "a number of too many digits")),
        ("config.json", b"\xef\xbb\xbf{}", ("config.json", "not JSON")),
        ("config.json", b"null", ("config.json", "got null")),
        (PROMPTS, b'{"prompts":\n {"a": "\\ud800"}}', (PROMPTS, "line 2, column 9", "\\ud800")),
        (PROMPTS, b'{"prompts": {"a": "\xed\xa0\x80"}}', (PROMPTS, "not UTF-8")),
        ("tokenizer.json", b"{}", ("tokenizer.json", "cannot read it")),
        ("tokenizer.json", b"null", ("tokenizer.json", "got null")),
        ("tokenizer.json", b"[" * 200_000, ("tokenizer.json", "nested too deeply")),
        ("config.json", b"[1]", ("config.json", "a JSON object is needed")),
        ("config.json", b"{}", ("config.json", "model_type: one of", "bert", "got null")),
        ("modules.json", b'{"a": 1}', ("modules.json", "a list of modules is needed")),
        (POOLING, b"\xff", (POOLING, "byte 0", "not UTF-8")),
        ("tokenizer.json", b'{"version": "1.0"}', ("tokenizer.json", "cannot read it")),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\n",
            ("model.safetensors", "Git LFS pointer"),
        ),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", ("tokenizer.json", "Git LFS pointer")),
        ("model.safetensors", b"\x00" * 5, ("model.safetensors", "truncated")),
        ("model.safetensors", None, ("model.safetensors: missing", "tokenizer.json", "config.json")),
        ("tokenizer.json", None, ("tokenizer.json: missing", "vocab.txt")),
        (POOLING, None, (f"{POOLING}: missing", "there: nothing")),
    ],
)
def test_a_broken_or_missing_file_is_named(
    tiny_models: Path, tmp_path: Path, file: str, content: bytes | None, parts: tuple[str, ...]
) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    (folder / "vocab.txt").unlink()  # it would do in the place of tokenizer.json
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


def test_an_older_directory_has_its_vocabulary_alone(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    (folder / "tokenizer.json").unlink()
    model = read_model(folder)
    assert {"vocab.txt", "tokenizer_config.json"} <= model.sha256.keys()
    assert "tokenizer.json" not in model.sha256
    published = read_model(tiny_models / "bert_mean")
    assert ids(model, "Hello WORLD héllo") == ids(published, "Hello WORLD héllo")
    assert model.warnings == published.warnings


def test_all_faults_are_told_in_one_run(tiny_models: Path, tmp_path: Path) -> None:
    edits: dict[str, dict[str, Any]] = {
        POOLING: {"pooling_mode": "banana"},
        "config.json": {"model_type": "gpt2"},
        ST_CONFIG: {"do_lower_case": True},
    }
    folder = edited(tiny_models / "bert_mean_new", tmp_path / "model", edits)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink()
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert len(caught.value.faults) == 4


def test_folders_outside_the_model_are_refused(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match=r"\.\./elsewhere/config\.json: files must lie inside"):
        read_model(folder)
