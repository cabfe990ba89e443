"""What transformers would tokenize otherwise, by one of its versions, is refused by file, key and value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.errors import ExportError
from tests.tokenizing.changing import CONFIG, FILE, METASPACE, configure, edit, save, steps
from tests.tokenizing.comparing import read
from tests.tokenizing.conftest import Copy
from tests.tokenizing.directories import pieces, write

BERT, MPNET, ROBERTA = "BertTokenizer", "MPNetTokenizer", "RobertaTokenizer"
XLM, CAMEMBERT, ALBERT = "XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer"
SPM, SPIECE = "sentencepiece.bpe.model", "spiece.model"
Change = Callable[[dict[str, Any]], Any]


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(ExportError) as caught:
        read(folder)
    assert any(all(part in fault for part in parts) for fault in caught.value.faults), str(caught.value)


FILES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "no vocabulary": (BERT, {"vocab.txt": None}, (FILE, "missing", "vocab.txt would do as well")),
    "no vocabulary of words": (ROBERTA, {"vocab.json": None, "merges.txt": None}, ("vocab.json with merges.txt",)),
    "no merges": (ROBERTA, {"merges.txt": None}, ("merges.txt: missing", "vocab.json")),
    "plain without its file": (BERT, {CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast"}}, (FILE, "missing")),
    "modernbert": (ROBERTA, {"config.json": {"model_type": "modernbert"}}, (FILE, "missing")),
    "a pointer": (XLM, {SPM: b"version https://git-lfs.github.com/spec/v1\n"}, (SPM, "Git LFS pointer")),
    "a pointer beside it": (BERT, {FILE: b"version https://git-lfs.github.com/spec/v1\n"}, (FILE, "Git LFS pointer")),
    "no pieces": (XLM, {SPM: b""}, (SPM, "cannot be read")),
    "no model": (ALBERT, {SPIECE: b"\xff\xfe not a model"}, (SPIECE, "cannot be read")),
    "merged pieces": (XLM, {SPM: pieces(model_type="bpe")}, (SPM, "a unigram model is needed")),
    "words that are no text": (BERT, {"vocab.txt": b"\xff\xfe"}, ("vocab.txt", "cannot be read")),
    "no unknown token": (BERT, {"vocab.txt": "hello\n[CLS]\n[SEP]\n"}, ("vocab.txt", "outside the vocabulary")),
    "no unknown piece": (ALBERT, {SPIECE: pieces(unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1)}, ("cls_token", "[CLS]")),
    "another format": (BERT, {"tokenizer.model": b"x"}, ("tokenizer.model", "transformers would read this")),
    "merges of three": (ROBERTA, {"merges.txt": "#version: 0.2\na b c\n"}, ("vocab.json", "cannot be read")),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_vocabulary_files(copy: Copy, name: str) -> None:
    kind, files, parts = FILES[name]
    refused(write(copy(kind), files), *parts)


CONFIGS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "an unknown class": (BERT, {"tokenizer_class": "BertJapaneseTokenizer"}, (CONFIG, "BertJapaneseTokenizer")),
    "prefix as a text": (ROBERTA, {"add_prefix_space": "yes"}, (CONFIG, "add_prefix_space", '"yes"')),
    "accents null": (ALBERT, {"keep_accents": None}, (CONFIG, "keep_accents", "null")),
    "end of the text": (XLM, {"add_eos_token": True}, (CONFIG, "add_eos_token")),
    "a vocabulary of its own": (BERT, {"vocab": {"a": 0}}, (CONFIG, "vocab")),
    "arguments": (BERT, {"init_inputs": ["x"]}, (CONFIG, "init_inputs")),
    "inputs": (BERT, {"model_input_names": "input_ids"}, (CONFIG, "model_input_names", '"input_ids"')),
    "no first token": (XLM, {"bos_token": None}, (CONFIG, "bos_token", "null")),
    "a first token with a space": (XLM, {"bos_token": "< s >"}, (CONFIG, "bos_token", "< s >")),
    "a last token with a sign": (CAMEMBERT, {"eos_token": "$A"}, (CONFIG, "eos_token", "$A")),
    "a list that is none": (CAMEMBERT, {"additional_special_tokens": "x"}, (CONFIG, "additional_special_tokens")),
    "a token that is none": (CAMEMBERT, {"extra_special_tokens": [3]}, (CONFIG, "extra_special_tokens", "got 3")),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_configuration(copy: Copy, name: str) -> None:
    kind, values, parts = CONFIGS[name]
    refused(configure(copy(kind), **values), *parts)


def model(**values: Any) -> Change:
    return lambda document: document["model"].update(values)


def part(name: str, value: Any) -> Change:
    return lambda document: document.update({name: value})


def no_bytes(document: dict[str, Any]) -> None:
    document["model"]["unk_token"] = "<unk>"
    del document["model"]["vocab"]["ÿ"]


def other_pair(document: dict[str, Any]) -> None:
    del document["post_processor"]["pair"][3]


def other_frame(document: dict[str, Any]) -> None:
    document["post_processor"]["cls"] = ["<pad>", 1]


def lower(document: dict[str, Any]) -> None:
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps(document)]}


JSON: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "unknown piece": (XLM, model(unk_id=0), ("model.unk_id", "3 is needed", "got 0")),
    "unknown piece of camembert": (CAMEMBERT, model(unk_id=4), ("model.unk_id", "3 is needed")),
    "unknown piece of albert": (ALBERT, model(unk_id=0), ("model.unk_id", "1 is needed")),
    "bytes of pieces": (XLM, model(byte_fallback=True), ("model.byte_fallback", "got true")),
    "lower case": (XLM, lower, ("normalizer", "Precompiled is needed", "Lowercase")),
    "no normalizer": (CAMEMBERT, part("pre_tokenizer", None), ("pre_tokenizer", "WhitespaceSplit, Metaspace", "null")),
    "first word alone": (XLM, part("pre_tokenizer", METASPACE | {"prepend_scheme": "first"}), ("pre_tokenizer",)),
    "no separator": (XLM, other_pair, ("post_processor", "<s> A </s> </s> B </s>")),
    "no template": (ALBERT, part("post_processor", None), ("post_processor", "[CLS] A [SEP] B [SEP]", "got null")),
    "first token": (MPNET, other_frame, ("post_processor", "<s> A </s> </s> B </s>", "<pad>")),
    "accents of albert": (ALBERT, lambda document: steps(document).pop(3), ("normalizer", "StripAccents")),
    "a normalizer": (ROBERTA, part("normalizer", {"type": "NFC"}), ("normalizer", "null is needed", "NFC")),
    "split at spaces": (ROBERTA, part("pre_tokenizer", {"type": "Whitespace"}), ("pre_tokenizer", "ByteLevel")),
    "no expression": (
        ROBERTA,
        lambda document: document["pre_tokenizer"].update(use_regex=False),
        ("pre_tokenizer.use_regex", "true is needed"),
    ),
    "dropout": (ROBERTA, model(dropout=0.1), ("model.dropout", "by lot")),
    "merges not needed": (ROBERTA, model(ignore_merges=True), ("model.ignore_merges", "got true")),
    "a byte less": (ROBERTA, no_bytes, ("model.unk_token", "null is needed", '"<unk>"')),
    "a token of its own": (
        XLM,
        lambda document: document["added_tokens"][4].update(lstrip=True, content="<x>", id=212),
        ("mask_token", '"id": 211'),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JSON)
def test_saved_file(copy: Copy, name: str) -> None:
    kind, change, parts = JSON[name]
    refused(edit(save(copy(kind)), change), FILE if name != "a token of its own" else CONFIG, *parts)


def test_another_algorithm_than_the_class_has(copy: Copy) -> None:
    folder = save(copy(BERT))
    for name in (ROBERTA, XLM):
        refused(configure(folder, tokenizer_class=name), FILE, "model.type", '"WordPiece"')


def test_plain_with_dropout(copy: Copy) -> None:
    folder = configure(edit(save(copy(ROBERTA)), model(dropout=0.1)), tokenizer_class="PreTrainedTokenizerFast")
    refused(folder, FILE, "model.dropout", "by lot")


def test_other_settings_than_the_file_has(copy: Copy) -> None:
    refused(configure(save(copy(ALBERT)), do_lower_case=False), FILE, "normalizer", "Precompiled is needed")
    refused(configure(save(copy(XLM, "second")), add_prefix_space=False), FILE, "pre_tokenizer.prepend_scheme")


def test_every_fault_at_once(copy: Copy) -> None:
    folder = edit(save(copy(ALBERT)), model(unk_id=0, byte_fallback=True))
    with pytest.raises(ExportError) as caught:
        read(folder)
    assert len(caught.value.faults) == 2
