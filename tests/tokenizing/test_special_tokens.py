"""Special tokens that a text spells out: tokens by default, as in transformers; mere text where that is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from transformers import AutoTokenizer

from service.engine.request import Text
from service.engine.tokenizer import TextTokenizer
from service.errors import StartupError
from tests.fixtures.texts import encode
from tests.tokenizing.changing import configure, edit, save
from tests.tokenizing.comparing import TEXTS, read, serve
from tests.tokenizing.conftest import Copy
from tests.tokenizing.test_classes import CLASSES, SOME_TEXT, not_special

SPELLED = "hello [SEP] world [CLS] </s> <s>hello</s> ＜/s＞ [CLS]"


UNIGRAM = ("XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer")
Both = dict[str, tuple[TextTokenizer, TextTokenizer]]


def ids(tokenizer: TextTokenizer, text: str, pair: str | None = None) -> list[int]:
    found: list[int] = encode(tokenizer, Text(text, pair))[0].ids.tolist()
    return found


@pytest.fixture(scope="module")
def both(directories: dict[str, Path]) -> Both:
    """Each class under both settings."""
    files = {name: read(folder) for name, folder in directories.items()}
    return {name: (serve(file), serve(file, "text")) for name, file in files.items()}


@pytest.fixture(scope="module")
def special_ids(directories: dict[str, Path]) -> dict[str, set[int]]:
    return {name: {*AutoTokenizer.from_pretrained(folder).all_special_ids} for name, folder in directories.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_only_the_template_puts_them_in(both: Both, name: str) -> None:
    tokens, text = both[name]
    first, *body, last = ids(text, SPELLED)
    assert first not in body
    assert last not in body
    assert {first, last} & {*ids(tokens, SPELLED)[1:-1]}
    encoding = encode(text, Text(SPELLED, SPELLED), with_tokens=True)[0]
    assert encoding.ids.tolist().count(first) == 1
    assert encoding.sequences is not None
    assert not encoding.type_ids[encoding.sequences == 0].any()


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in UNIGRAM])
def test_as_transformers_splits_them(both: Both, directories: dict[str, Path], name: str) -> None:
    theirs: Any = AutoTokenizer.from_pretrained(directories[name])
    for text in (*TEXTS, SPELLED):
        assert ids(both[name][1], text) == theirs(text, split_special_tokens=True)["input_ids"]


@settings(max_examples=150)
@given(text=SOME_TEXT)
def test_any_text_without_them_has_the_same_ids(both: Both, special_ids: dict[str, set[int]], text: str) -> None:
    for name, (tokens, mere) in both.items():
        first, *body, last = ids(mere, text)
        assert not {first, last} & {*body}
        usual = ids(tokens, text)
        if not special_ids[name] & {*usual[1:-1]}:
            assert [first, *body, last] == usual


def test_tokens_that_the_file_does_not_call_special(copy: Copy) -> None:
    folder = configure(edit(save(copy("BertTokenizer")), not_special), tokenizer_class="PreTrainedTokenizerFast")
    assert ids(serve(read(folder), "text"), "hello [SEP]").count(3) == 1


def test_a_word_that_frames_a_text_cannot_be_text(copy: Copy) -> None:
    folder = configure(copy("BertTokenizer"), cls_token="hello")
    with pytest.raises(StartupError, match="'hello' frames texts and is a word as well"):
        serve(read(folder), "text")


def test_a_prompt_with_special_tokens_is_refused(directories: dict[str, Path]) -> None:
    file = read(directories["BertTokenizer"])
    prompts = {"query": "[MASK] hello ", "plain": "hello "}
    assert ids(serve(file, prompts=prompts), "[SEP]")
    with pytest.raises(StartupError, match=r"text\.prompts: 'query' has special tokens"):
        serve(file, "text", prompts=prompts)
    assert ids(serve(file, "text", prompts={"plain": "hello "}), "[SEP]").count(3) == 1
