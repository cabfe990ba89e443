from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from service.engine.request import Text, TokenIds
from service.errors import RequestError, StartupError
from tests.fixtures.texts import CLS, SEP, encode, make

PROMPTS = {"query": "a query ", "doc": "", "glued": "cat"}


@pytest.fixture(scope="module")
def bert(tiny_models: Path) -> Path:
    return tiny_models / "bert_mean"


def test_prompt_names(bert: Path) -> None:
    tokenizer = make(bert, prompts=PROMPTS, default_prompt_name="query")
    assert [tokenizer.resolve_prompt(name) for name in (None, "query", "doc")] == ["a query ", "a query ", ""]
    with pytest.raises(RequestError, match="doc, glued, query") as caught:
        tokenizer.resolve_prompt("passage")
    assert caught.value.param == "prompt_name"
    with pytest.raises(RequestError, match="none"):
        make(bert).resolve_prompt("query")
    assert make(bert).resolve_prompt(None) == ""


def test_unknown_default_prompt(bert: Path) -> None:
    with pytest.raises(StartupError, match="default_prompt_name"):
        make(bert, prompts=PROMPTS, default_prompt_name="passage")


def test_prompt_goes_before_texts_and_not_before_ids(bert: Path) -> None:
    tokenizer = make(bert, prompts=PROMPTS)
    single, pair, ids = encode(
        tokenizer, Text("red dog"), Text("red", "dog"), TokenIds((CLS, 40, SEP)), prompt="a query "
    )
    plain, plain_pair = encode(tokenizer, Text("a query red dog"), Text("a query red", "dog"))
    assert single.ids.tolist() == plain.ids.tolist()
    assert pair.ids.tolist() == plain_pair.ids.tolist()
    assert ids.ids.tolist() == [CLS, 40, SEP]


def test_prompt_tokens_have_no_offsets(bert: Path) -> None:
    tokenizer = make(bert, prompts=PROMPTS)
    encoding, glued = encode(tokenizer, Text("red dog", "dog"), Text("s on"), prompt="cat", with_tokens=True)
    spans = [(t.text, t.start, t.end) for t in tokenizer.tokens(encoding)]
    assert spans[-4:] == [("dog", 4, 7), ("[SEP]", None, None), ("dog", 0, 3), ("[SEP]", None, None)]
    # "cat" and "s" make one word: pieces that end inside the prompt have no offsets, the next begins at the text's 0.
    assert [(t.start, t.end) for t in tokenizer.tokens(glued)[-3:-1]] == [(0, 1), (2, 4)]
    assert {t.start for t in tokenizer.tokens(glued)[:-3]} == {None}


def test_word_across_prompt_and_text_begins_where_the_text_does(minilm_dir: Path) -> None:
    tokenizer = make(minilm_dir, prompts={"glued": "hel"})
    encoding = encode(tokenizer, Text("lo"), prompt="hel", with_tokens=True)[0]
    assert [(t.text, t.start, t.end) for t in tokenizer.tokens(encoding)[1:-1]] == [("hello", 0, 2)]


@pytest.mark.parametrize("prompt", ["a query ", "query: ", "the river bank " * 30, ""])
@pytest.mark.parametrize("texts", [["red dog", "", "fast " * 90]])
def test_prompt_handling_equals_sentence_transformers(tiny_models: Path, prompt: str, texts: Sequence[str]) -> None:
    from sentence_transformers import SentenceTransformer

    directory = tiny_models / "bert_mean"
    model = SentenceTransformer(str(directory), device="cpu")
    features = model.preprocess(list(texts), prompt=prompt)
    masks = features["attention_mask"].numpy().copy()
    expected = [row[row_mask == 1] for row, row_mask in zip(features["input_ids"].numpy(), masks, strict=True)]
    lengths = masks.sum(axis=1)
    masks[:, : features.get("prompt_length") or 0] = 0
    tokenizer = make(directory, prompts={"query": prompt}, include_prompt=False)
    encodings = encode(tokenizer, *map(Text, texts), prompt=prompt, truncate="right")
    for encoding, ids, mask, length in zip(encodings, expected, masks, lengths, strict=True):
        assert encoding.ids.tolist() == ids.tolist()
        pooled = np.ones(length) if encoding.pooling_mask is None else encoding.pooling_mask
        assert pooled.tolist() == mask[:length].tolist()
    assert (encodings[0].pooling_mask is None) == (prompt == "")


def test_prompt_counts_for_pooling_unless_the_model_says_otherwise(bert: Path) -> None:
    assert encode(make(bert, prompts=PROMPTS), Text("dog"), prompt="a query ")[0].pooling_mask is None


def test_left_cut_prompt_leaves_the_text_pooled(bert: Path) -> None:
    tokenizer = make(bert, max_tokens=4, prompts=PROMPTS, include_prompt=False)
    encoding = encode(tokenizer, Text("red dog"), prompt="a query ", truncate="left")[0]
    assert encoding.pooling_mask is not None
    assert encoding.pooling_mask.tolist() == [0, 1, 1, 1]
