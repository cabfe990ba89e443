"""Ids: whatever is exported tokenizes as transformers does from the same directory; the rest is refused by name."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from export.errors import ExportError
from export.texts.read.model import read_model

Edits = Mapping[str, Mapping[str, Any]]

FILE, CONFIG, MAP, ADDED = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEXTS = (
    "", " ", "hello world", "Hello WORLD", "héllo wörld naïve", "e\u0301cole ÉCOLE", "中国 hello日本", "a.b,c!d?e'f-g",
    "[CLS] hello [SEP]", "[cls] hello [sep]", "hello[MASK]world [PAD] [UNK]", "[NEW] hello <new>", "NEW new_token x",
    "redcats bluedogs", "worldly" * 20, "x" * 150, "hel\u00adlo wor\u200bld\u0000 \ufffd", "tab\tnew\nline\r\u3000end",
    "İstanbul ΣΑΣ ß ﬁ", "🙂 👩‍👩‍👧 🇩🇪", "עש hello", "un@@known ##ing ##a", "0123456789 1.5", "\U00013000",
)  # fmt: skip
PAIR = ("hello [SEP] world", "a red Cat")

NEW_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
CLS_A_SEP = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
LOWER, NFC = {"type": "Lowercase"}, {"type": "NFC"}
NFC_LOWER = {"type": "Sequence", "normalizers": [NFC, LOWER]}
BERT_PROCESSING = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}


@pytest.fixture
def folder(tiny_models: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        yield shutil.copytree(tiny_models / "bert_mean", Path(scratch) / "model")


def edit(source: Path, folder: Path, edits: Edits) -> None:
    """Write files with other values. edits: file → key, dots for what lies deeper → value."""
    for name, values in edits.items():
        file = source / name
        content = json.loads(file.read_text("utf-8")) if file.exists() else {}
        for path, value in values.items():
            *keys, last = path.split(".")
            place = content
            for key in keys:
                place = place[key]
            place[last] = copy.deepcopy(value)
        (folder / name).write_text(json.dumps(content), "utf-8")


def differences(folder: Path) -> list[str] | None:
    """Texts whose ids or types are not those of transformers; None when the export refuses."""
    try:
        content = read_model(folder).tokenizer.content
    except ExportError:
        return None
    ours, theirs = Tokenizer.from_buffer(content), AutoTokenizer.from_pretrained(folder)
    ours.no_truncation()
    ours.no_padding()
    wrong = []
    for text in (*TEXTS, PAIR):
        found, expected = (
            ours.encode(*([text] if isinstance(text, str) else text)),
            theirs(*([text] if isinstance(text, str) else text)),
        )
        types = expected.get("token_type_ids", [0] * len(expected["input_ids"]))
        if (found.ids, found.type_ids) != (expected["input_ids"], types):
            wrong.append(f"{text}: {found.ids} {found.type_ids}, transformers {expected}")
    return wrong


def token(content: str, index: int | None = None, **flags: bool) -> dict[str, Any]:
    return ({} if index is None else {"id": index}) | {"content": content} | NEW_FLAGS | flags


def own_tokens(*more: dict[str, Any]) -> list[dict[str, Any]]:
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    return [*(token(name, i, normalized=False, special=True) for i, name in enumerate(names)), *more]


def decoder(*more: dict[str, Any]) -> dict[str, Any]:
    return {
        str(entry["id"]): {key: value for key, value in entry.items() if key != "id"} for entry in own_tokens(*more)
    }


KEPT: dict[str, Edits] = {
    "as saved": {},
    "cased": {CONFIG: {"do_lower_case": False}},
    "accents": {CONFIG: {"strip_accents": False}},
    "without chinese": {CONFIG: {"tokenize_chinese_chars": False}},
    "usual keys of older files": {CONFIG: {"do_basic_tokenize": True, "never_split": None, "name_or_path": "x/y"}},
    "another bert class": {CONFIG: {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False}},
    "class from config.json": {CONFIG: {"tokenizer_class": None}, "config.json": {"tokenizer_class": "BertTokenizer"}},
    "no class": {CONFIG: {"tokenizer_class": None}},
    "bert post-processor": {FILE: {"post_processor": BERT_PROCESSING}},
    "a token of its own": {FILE: {"added_tokens": own_tokens(token("[NEW]", 104))}},
    "a word of the vocabulary as a token": {FILE: {"added_tokens": own_tokens(token("hello", 84, lstrip=True))}},
    "a token in both": {
        FILE: {"added_tokens": own_tokens(token("<new>", 104))},
        CONFIG: {"added_tokens_decoder": decoder(token("<new>", 104))},
    },
    "no more special tokens": {CONFIG: {"additional_special_tokens": []}},
    "a map of what is there": {MAP: {"cls_token": token("[CLS]", normalized=False), "unk_token": "[UNK]"}},
    "plain": {CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}},
    "plain, lower case and NFC": {
        CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
        FILE: {"normalizer": NFC_LOWER, "pre_tokenizer": {"type": "Whitespace"}},
    },
    "plain without a template": {CONFIG: {"tokenizer_class": "TokenizersBackend"}, FILE: {"post_processor": None}},
}  # fmt: skip

REFUSED: dict[str, tuple[Edits, tuple[str, ...]]] = {
    "no normalizer": ({FILE: {"normalizer": None}}, (FILE, "normalizer", "BertNormalizer", "got null")),
    "lower case alone": ({FILE: {"normalizer": LOWER}}, (FILE, "normalizer", '"Lowercase"')),
    "NFC": ({FILE: {"normalizer": {"type": "Sequence", "normalizers": [NFC]}}}, (FILE, "normalizer", "NFC")),
    "control characters": ({FILE: {"normalizer.clean_text": False}}, (FILE, "normalizer.clean_text", "false")),
    "no template": ({FILE: {"post_processor": None}}, (FILE, "post_processor", "[CLS] A [SEP]", "got null")),
    "half a template": ({FILE: {"post_processor.single": CLS_A_SEP}}, (FILE, "post_processor")),
    "another id": (
        {FILE: {"post_processor.special_tokens.[CLS].ids": [9]}},
        (FILE, "post_processor", "ids of the vocabulary"),
    ),
    "split at spaces": (
        {FILE: {"pre_tokenizer": {"type": "WhitespaceSplit"}}},
        (FILE, "pre_tokenizer", "BertPreTokenizer", "WhitespaceSplit"),
    ),
    "short words": (
        {FILE: {"model.max_input_chars_per_word": 5}},
        (FILE, "model.max_input_chars_per_word", "100", "5"),
    ),
    "prefix": ({FILE: {"model.continuing_subword_prefix": "@@"}}, (FILE, "model.continuing_subword_prefix", '"@@"')),
    "unknown token": ({CONFIG: {"unk_token": "[MASK]"}}, (FILE, "model.unk_token", '"[MASK]"', CONFIG)),
    "unknown token of the file": ({FILE: {"model.unk_token": "[MASK]"}}, (FILE, "model.unk_token", '"[UNK]"')),
    "unknown token nowhere": ({FILE: {"model.unk_token": "[ODD]"}}, (FILE, "outside the vocabulary")),
    "first token": ({CONFIG: {"cls_token": "[MASK]"}}, (FILE, "post_processor", "[MASK] A [SEP]")),
    "first token in the map": ({MAP: {"cls_token": "[MASK]"}}, (FILE, "post_processor", "[MASK] A [SEP]")),
    "first token null": ({CONFIG: {"cls_token": None}}, (CONFIG, "cls_token", "null")),
    "first token a number": ({CONFIG: {"cls_token": 3}}, (CONFIG, "cls_token", "3")),
    "a class with other rules": (
        {CONFIG: {"tokenizer_class": "T5Tokenizer"}},
        (CONFIG, "tokenizer_class", "T5Tokenizer", "BertTokenizer"),
    ),
    "a class in config.json": (
        {CONFIG: {"tokenizer_class": None}, "config.json": {"tokenizer_class": "Foo"}},
        ("config.json", "tokenizer_class", "Foo"),
    ),
    "code": ({CONFIG: {"auto_map": {"AutoTokenizer": [None, "code.Mine"]}}}, (CONFIG, "auto_map", "code.Mine")),
    "split special tokens": ({CONFIG: {"split_special_tokens": True}}, (CONFIG, "split_special_tokens", "true")),
    "versions": ({CONFIG: {"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}}, (CONFIG, "fast_tokenizer_files")),
    "a token in additional_special_tokens": (
        {CONFIG: {"additional_special_tokens": ["[NEW]"]}},
        (CONFIG, "additional_special_tokens", "[NEW]", "104"),
    ),
    "a token with a name": ({CONFIG: {"image_token": "<new>"}}, (CONFIG, "image_token", "<new>")),
    "a token in added_tokens_decoder": (
        {CONFIG: {"added_tokens_decoder": decoder(token("[NEW]", 104))}},
        (CONFIG, "added_tokens_decoder", "[NEW]"),
    ),
    "an id of many digits": (
        {CONFIG: {"added_tokens_decoder": {"1" * 5_000: token("[NEW]", 104)}}},
        (CONFIG, "added_tokens_decoder", "from id to token"),
    ),
    "other flags in added_tokens_decoder": (
        {CONFIG: {"added_tokens_decoder": decoder(token("[MASK]", 4, lstrip=True))}},
        (CONFIG, "added_tokens_decoder", "[MASK]", '"lstrip": true'),
    ),
    "a token that added_tokens_decoder lacks": (
        {CONFIG: {"added_tokens_decoder": decoder()}, FILE: {"added_tokens": own_tokens(token("[NEW]", 104))}},
        (FILE, "added_tokens", "[NEW]"),
    ),
    "a token in added_tokens.json": ({ADDED: {"[NEW]": 104}}, (ADDED, "[NEW]", "104")),
    "a token in the map": (
        {MAP: {"additional_special_tokens": ["[NEW]"]}},
        (MAP, "additional_special_tokens", "[NEW]"),
    ),
    "a setting in the map": ({MAP: {"do_lower_case": False}}, (MAP, "do_lower_case", "false")),
    "no added tokens": ({FILE: {"added_tokens": []}}, (CONFIG, "cls_token", "[CLS]")),
    "lower case as a text": ({CONFIG: {"do_lower_case": "false"}}, (CONFIG, "do_lower_case", '"false"')),
    "lower case null": ({CONFIG: {"do_lower_case": None}}, (CONFIG, "do_lower_case", "null")),
    "accents as a number": ({CONFIG: {"strip_accents": 1}}, (CONFIG, "strip_accents", "got 1")),
    "arguments of the pipeline": (
        {"sentence_bert_config.json": {"tokenizer_args": {"do_lower_case": False}}},
        ("sentence_bert_config.json", "tokenizer_args", "do_lower_case"),
    ),
    "lower case of the pipeline as a text": (
        {"sentence_bert_config.json": {"do_lower_case": "yes"}},
        ("sentence_bert_config.json", "do_lower_case", '"yes"'),
    ),
    "a normalizer that is a text": (
        {"sentence_bert_config.json": {"do_lower_case": True}, FILE: {"normalizer": "x"}},
        (FILE, "cannot read it"),
    ),
    "an unknown model": ({FILE: {"model.type": "Tiktoken"}}, (FILE, "model: ", "cannot read it", '"type": "Tiktoken"')),
    "an unknown step": (
        {FILE: {"normalizer": {"type": "Sequence", "normalizers": [NFC, {"type": "Shout", "loud": True}]}}},
        (FILE, "normalizer.normalizers[1]: ", "cannot read it", '{"type": "Shout", "loud": true}'),
    ),
    "a decoder without its kind": ({FILE: {"decoder": {"kind": 1}}}, (FILE, "decoder: ", '{"kind": 1}')),
    "an empty vocabulary": ({FILE: {"model.vocab": {}}}, (FILE, "outside the vocabulary", "[UNK]")),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_exported_gives_the_ids_of_transformers(folder: Path, name: str) -> None:
    edit(folder, folder, KEPT[name])
    assert differences(folder) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_would_tokenize_otherwise_is_refused(folder: Path, name: str) -> None:
    edits, parts = REFUSED[name]
    edit(folder, folder, edits)
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


def test_the_published_file_gives_the_ids_of_transformers(minilm_dir: Path) -> None:
    assert differences(minilm_dir) == []


CONTENTS = st.sampled_from(["[NEW]", "<new>", "hello", "NEW", "[CLS]", "a", "[PAD]", "Hello", "##a", ""])
FLAGS = st.fixed_dictionaries({name: st.booleans() for name in NEW_FLAGS})
TOKENS = st.builds(lambda content, flags: {"content": content} | flags, CONTENTS, FLAGS)


def listed(tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens with the ids that a file would give them, or with some of those of the vocabulary."""
    known = {"hello": 84, "a": 5, "[CLS]": 2, "[PAD]": 0}
    return [{"id": known.get(entry["content"], 104 + index)} | entry for index, entry in enumerate(tokens)]


NORMALIZERS = st.one_of(
    st.sampled_from([None, LOWER, NFC, {"type": "StripAccents"}, NFC_LOWER]),
    st.builds(
        lambda flags: BERT_NORMALIZER | flags,
        st.fixed_dictionaries(
            {"strip_accents": st.none() | st.booleans(), "lowercase": st.booleans(), "clean_text": st.booleans()}
        ),
    ),
)  # fmt: skip
MORE_TOKENS = st.lists(TOKENS, max_size=2)
FILE_EDITS = st.fixed_dictionaries({}, optional={
    "normalizer": NORMALIZERS,
    "pre_tokenizer": st.sampled_from([None, {"type": "BertPreTokenizer"}, {"type": "Whitespace"}]),
    "post_processor": st.sampled_from([None, BERT_PROCESSING]),
    "added_tokens": st.builds(lambda more: own_tokens(*listed(more)), MORE_TOKENS),
    "model.max_input_chars_per_word": st.sampled_from([100, 7]),
    "model.unk_token": st.sampled_from(["[UNK]", "[MASK]"]),
})  # fmt: skip
CONFIG_EDITS = st.fixed_dictionaries({}, optional={
    "tokenizer_class": st.sampled_from([
        "BertTokenizer", "BertTokenizerFast", "ElectraTokenizer", "DistilBertTokenizerFast", "PreTrainedTokenizerFast",
        "TokenizersBackend", None,
    ]),
    "do_lower_case": st.booleans(),
    "strip_accents": st.sampled_from([None, True, False]),
    "tokenize_chinese_chars": st.booleans(),
    "cls_token": st.sampled_from(["[CLS]", "[MASK]", "[NEW]", "hello"]),
    "bos_token": st.sampled_from([None, "[CLS]", "[NEW]", "hello"]),
    "additional_special_tokens": st.lists(CONTENTS, max_size=2),
    "extra_special_tokens": st.lists(CONTENTS, max_size=2) | st.dictionaries(st.just("x_token"), CONTENTS),
    "added_tokens_decoder": st.builds(lambda more: decoder(*listed(more)), MORE_TOKENS),
})  # fmt: skip
MAP_EDITS = st.fixed_dictionaries({}, optional={
    "cls_token": st.sampled_from(["[CLS]", "[NEW]", token("[CLS]"), token("[MASK]")]),
    "mask_token": st.sampled_from([None, "[MASK]", "<new>"]),
    "additional_special_tokens": st.lists(CONTENTS, max_size=2),
})  # fmt: skip


@settings(max_examples=200)
@given(
    file=FILE_EDITS,
    config=CONFIG_EDITS,
    special=MAP_EDITS,
    added=st.dictionaries(st.sampled_from(["[NEW]", "NEW", "hello"]), st.integers(104, 106), max_size=1),
    pipeline=st.booleans(),
)
def test_ids_are_those_of_transformers_or_nothing_is_exported(
    tiny_models: Path,
    file: dict[str, Any],
    config: dict[str, Any],
    special: dict[str, Any],
    added: dict[str, int],
    pipeline: bool,
) -> None:
    source = tiny_models / "bert_mean"
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(source, Path(scratch) / "model", ignore=shutil.ignore_patterns("vocab.txt"))
        edit(source, folder, {FILE: file, CONFIG: config, MAP: special, ADDED: added})
        assert differences(folder) in (None, [])
