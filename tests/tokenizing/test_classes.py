"""Every tokenizer class gives the ids, types and offsets of transformers, from either form of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from service.engine.request import Text
from service.engine.tokenizer import TextTokenizer
from tests.fixtures.texts import encode
from tests.tokenizing.changing import CONFIG, FILE, METASPACE, STRIP, Change, configure, edit, save, spaces, steps
from tests.tokenizing.comparing import compare, differences, read, serve
from tests.tokenizing.conftest import Copy
from tests.tokenizing.directories import write

CLASSES = (
    "BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", "MPNetTokenizer", "RobertaTokenizer",
    "XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer",
)  # fmt: skip
MAP = "special_tokens_map.json"


@pytest.mark.parametrize("name", CLASSES)
def test_vocabulary_files_alone(directories: dict[str, Path], name: str) -> None:
    assert compare(directories[name]) == []


@pytest.mark.parametrize("name", CLASSES)
def test_as_transformers_saves_it(copy: Copy, name: str) -> None:
    saved = save(copy(name))
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", FILE, CONFIG]
    assert compare(saved) == []
    file = read(saved, num_token_types=0)
    assert file.changes == ()
    assert file.content == (saved / FILE).read_bytes()


@pytest.mark.parametrize("name", [*CLASSES, "BertTokenizerFast", "XLMRobertaTokenizerFast"])
def test_class_by_the_type_of_the_model_or_with_fast_in_its_name(copy: Copy, name: str) -> None:
    folder = copy(name.removesuffix("Fast"))
    assert compare(write(folder, {CONFIG: {"tokenizer_class": name} if name not in CLASSES else None})) == []


MASK = {"content": "<mask>", "lstrip": True}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "cased": ("BertTokenizer", {"do_lower_case": False}),
    "cased without accents": ("BertTokenizer", {"do_lower_case": False, "strip_accents": True}),
    "accents": ("BertTokenizer", {"strip_accents": False}),
    "chinese words": ("ElectraTokenizer", {"tokenize_chinese_chars": False}),
    "names": ("DistilBertTokenizer", {"cls_token": "hello", "sep_token": "a", "unk_token": "[MASK]"}),
    "mpnet cased": ("MPNetTokenizer", {"do_lower_case": False}),
    "mpnet names": ("MPNetTokenizer", {"mask_token": "[UNK]", "bos_token": None}),
    "new token": ("BertTokenizer", {"additional_special_tokens": ["[NEW]"], "x_token": "NEW"}),
    "roberta prefix": ("RobertaTokenizer", {"add_prefix_space": True}),
    "roberta offsets": ("RobertaTokenizer", {"trim_offsets": False}),
    "roberta names": ("RobertaTokenizer", {"cls_token": "</s>", "sep_token": "<s>", "mask_token": "hello"}),
    "xlm-r no prefix": ("XLMRobertaTokenizer", {"add_prefix_space": False}),
    "xlm-r names": ("XLMRobertaTokenizer", {"bos_token": "<b>", "unk_token": "<u>"}),
    "xlm-r older": ("XLMRobertaTokenizer", {"mask_token": MASK | {"__type": "AddedToken"}}),
    "xlm-r extra": ("XLMRobertaTokenizer", {"additional_special_tokens": ["hello"]}),
    "camembert extra": ("CamembertTokenizer", {"additional_special_tokens": []}),
    "camembert names": ("CamembertTokenizer", {"mask_token": "<m>", "unk_token": "<u>"}),
    "albert cased": ("AlbertTokenizer", {"do_lower_case": False}),
    "albert accents": ("AlbertTokenizer", {"keep_accents": True, "remove_space": True}),
    "albert no prefix": ("AlbertTokenizer", {"add_prefix_space": False}),
    "types of albert": ("AlbertTokenizer", {"model_input_names": ["input_ids", "token_type_ids"]}),
    "no types of bert": ("BertTokenizer", {"model_input_names": ["input_ids", "attention_mask"]}),
    "no limit": ("BertTokenizer", {"model_max_length": 1e30}),
    "decoder": ("XLMRobertaTokenizer", {"added_tokens_decoder": {"0": {"content": "<s>", "special": True}}}),
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("form", ["vocabulary", "saved"])
def test_settings(copy: Copy, option: str, form: str) -> None:
    name, values = OPTIONS[option]
    folder = configure(copy(name), **values)
    assert compare(save(folder) if form == "saved" else folder) == []


@pytest.mark.parametrize("name", CLASSES)
def test_tokens_of_other_files(copy: Copy, name: str) -> None:
    folder = copy(name)
    mask = "[MASK]" if "[MASK]" in json.dumps(str(read(folder).content)) else "<mask>"
    flags = {"content": mask, "lstrip": True, "rstrip": True, "normalized": False}
    write(folder, {MAP: {"mask_token": flags}, "added_tokens.json": {"[NEW]": read(folder).num_ids}})
    assert read(folder).num_ids > read(copy(name, "other")).num_ids
    assert compare(folder) == []


def older_xlm_roberta(document: dict[str, Any]) -> None:
    document["normalizer"] = {"type": "Sequence", "normalizers": [*steps(document), STRIP, spaces("▁")]}
    document["pre_tokenizer"] = METASPACE


def older_albert(document: dict[str, Any]) -> None:
    document["normalizer"] = {"type": "Sequence", "normalizers": [*steps(document), spaces(" ")]}
    document["pre_tokenizer"] = METASPACE


def template(document: dict[str, Any]) -> None:
    """What other tools write for RoBERTa: the same ids, offsets with spaces."""
    tokenizer = Tokenizer.from_str(json.dumps(document))
    built = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.post_processor = built
    document["post_processor"] = json.loads(tokenizer.to_str())["post_processor"]


def byte_prefix(document: dict[str, Any]) -> None:
    document["pre_tokenizer"]["add_prefix_space"] = True
    document["model"] |= {"unk_token": "<unk>", "continuing_subword_prefix": None}


def not_special(document: dict[str, Any]) -> None:
    for entry in document["added_tokens"]:
        entry["special"] = False


def baked(document: dict[str, Any]) -> None:
    document["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0,
        "pad_token": "<pad>",
    }  # fmt: skip


OLDER: dict[str, tuple[str, Change, str]] = {
    "converted xlm-r": ("XLMRobertaTokenizer", older_xlm_roberta, "pre_tokenizer"),
    "converted camembert": ("CamembertTokenizer", older_xlm_roberta, "normalizer"),
    "converted albert": ("AlbertTokenizer", older_albert, "normalizer"),
    "a template for roberta": ("RobertaTokenizer", template, "post_processor"),
    "a prefix in the file": ("RobertaTokenizer", byte_prefix, "add_prefix_space is false"),
    "cased in the file": (
        "MPNetTokenizer",
        lambda document: steps(document)[0].update(lowercase=False),
        "do_lower_case",
    ),
    "tokens that are not special": ("BertTokenizer", not_special, "added_tokens"),
}


@pytest.mark.parametrize("older", OLDER)
def test_what_other_versions_saved(copy: Copy, older: str) -> None:
    name, change, told = OLDER[older]
    folder = edit(save(copy(name)), change)
    assert compare(folder) == []
    changes = read(folder).changes
    assert any(told in line for line in changes), changes


@pytest.mark.parametrize("name", CLASSES)
def test_baked_truncation_and_padding_do_not_count(copy: Copy, name: str) -> None:
    text = "hello world " * 30
    folder = save(copy(name))
    expected = encode(serve(read(folder)), Text(text))[0].ids.tolist()
    file = read(edit(folder, baked))
    assert Tokenizer.from_buffer(file.content).truncation is not None
    assert encode(serve(file), Text(text))[0].ids.tolist() == expected
    assert len(expected) > 30


def test_tokens_that_a_class_adds_by_itself(copy: Copy) -> None:
    folder = configure(save(copy("CamembertTokenizer")), extra_special_tokens=None)
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    del config["extra_special_tokens"]
    assert compare(write(folder, {CONFIG: config})) == []
    assert "<s>NOTUSED, </s>NOTUSED, <unk>NOTUSED" in read(folder).changes[0]


def test_albert_keeps_the_template_of_the_file(copy: Copy) -> None:
    folder = edit(save(copy("AlbertTokenizer")), lambda document: document["post_processor"]["single"].pop())
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs("hello")["input_ids"][-1] != theirs.sep_token_id
    assert differences(serve(read(folder)), theirs, "hello world", ("a red cat", "hello")) == []


PLAIN = ("BertTokenizer", "AlbertTokenizer", "XLMRobertaTokenizer", "RobertaTokenizer")


@pytest.mark.parametrize("name", PLAIN)
def test_taken_as_it_is(copy: Copy, name: str) -> None:
    assert compare(configure(save(copy(name)), tokenizer_class="PreTrainedTokenizerFast")) == []


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BERT = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
TEMPLATES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "none": ("BertTokenizer", None),
    "of bert": ("BertTokenizer", BERT),
    "bytes": ("RobertaTokenizer", BYTES),
    "bytes in a list": ("RobertaTokenizer", {"type": "Sequence", "processors": [BYTES]}),
    "bytes and of bert": ("RobertaTokenizer", {"type": "Sequence", "processors": [BYTES, BERT]}),
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("inputs", [None, ["input_ids", "token_type_ids"]])
def test_any_template_of_a_file_that_is_taken_as_it_is(copy: Copy, template: str, inputs: list[str] | None) -> None:
    name, processor = TEMPLATES[template]
    more = {} if inputs is None else {"model_input_names": inputs}
    folder = configure(save(copy(name)), tokenizer_class="PreTrainedTokenizerFast", **more)
    edit(folder, lambda document: document.update(post_processor=processor))
    ours, theirs = serve(read(folder)), AutoTokenizer.from_pretrained(folder)
    assert differences(ours, theirs, "hello world", ("a red cat", "hello [SEP]")) == []
    assert ours.num_pair_types == (1 if inputs is None else 2)


def test_modernbert_takes_the_file_as_it_is_whatever_class_it_names(copy: Copy) -> None:
    folder = write(save(copy("RobertaTokenizer")), {"config.json": {"model_type": "modernbert"}})
    edit(folder, lambda document: document.update(normalizer={"type": "NFC"}))
    assert compare(folder, num_token_types=0) == []


TYPED = {"BertTokenizer": 1, "ElectraTokenizer": 1}


@pytest.mark.parametrize("name", CLASSES)
def test_type_of_the_second_text(directories: dict[str, Path], name: str) -> None:
    ours = serve(read(directories[name]))
    assert max(encode(ours, Text("a", "b"))[0].type_ids) == ours.num_pair_types - 1 == TYPED.get(name, 0)


def test_types_that_the_model_does_not_get_are_told(directories: dict[str, Path]) -> None:
    name = "AlbertTokenizer"
    told = read(directories[name]).changes
    assert len(told) == 1
    assert "model_input_names of AlbertTokenizer" in told[0]
    assert read(directories[name], num_token_types=0).changes == ()
    assert max(encode(serve(read(directories[name], num_token_types=0)), Text("a", "b"))[0].type_ids) == 1


CHARS = st.characters(codec="utf-8") | st.sampled_from(list(" \t\n▁<>/[]s.'`é\u0301ßĠ中ﬁ'"))
WORDS = st.sampled_from(["</s>", "<s>", "[SEP]", "[CLS]", "<mask>", "[MASK]", "<unk>NOTUSED", "hello", "##a", " "])
SOME_TEXT = st.lists(st.text(CHARS, max_size=8) | WORDS, max_size=8).map("".join)


@pytest.fixture(scope="module")
def both(directories: dict[str, Path]) -> list[tuple[TextTokenizer, Any]]:
    return [(serve(read(folder)), AutoTokenizer.from_pretrained(folder)) for folder in directories.values()]


@settings(max_examples=200)
@given(text=SOME_TEXT, pair=SOME_TEXT)
def test_any_text(both: list[tuple[TextTokenizer, Any]], text: str, pair: str) -> None:
    for ours, theirs in both:
        assert differences(ours, theirs, text, (text, pair)) == []
