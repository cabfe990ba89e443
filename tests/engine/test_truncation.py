from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, processors
from transformers import AutoTokenizer

from service.engine.request import Text
from service.engine.tokenizer import TextTokenizer
from service.engine.truncation import SPECIAL, kept_positions, share
from service.errors import RequestError
from tests.fixtures.texts import encode, make, refusal


@given(
    num_words=st.integers(0, 80),
    num_pair_words=st.none() | st.integers(0, 80),
    limit=st.integers(3, 90),
    side=st.sampled_from(["left", "right"]),
)
def test_truncation_equals_the_reference(
    tiny_models: Path, num_words: int, num_pair_words: int | None, limit: int, side: Literal["left", "right"]
) -> None:
    directory = tiny_models / "bert_mean"
    words = "cat dog red blue fast slow good bad river bank".split()
    texts = [" ".join(words[i % 10] for i in range(n)) for n in (num_words, num_pair_words) if n is not None]
    reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    sent = (texts[0], texts[1] if len(texts) == 2 else None)
    num_tokens = len(reference.encode(*sent).ids)
    reference.enable_truncation(limit, strategy="longest_first", direction=side)
    expected = reference.encode(*sent)
    tokenizer = make(directory, max_tokens=limit)
    encoding = encode(tokenizer, Text(*sent), truncate=side, with_tokens=True)[0]
    assert encoding.ids.tolist() == expected.ids
    assert encoding.type_ids.tolist() == expected.type_ids
    assert (encoding.num_tokens, encoding.truncated) == (num_tokens, num_tokens > limit)
    tokens = tokenizer.tokens(encoding)
    assert [token.sequence for token in tokens] == expected.sequence_ids
    assert [(t.start or 0, t.end or 0) for t in tokens] == expected.offsets


@given(limit=st.integers(3, 12), side=st.sampled_from(["left", "right"]))
def test_truncation_equals_transformers(tiny_models: Path, limit: int, side: Literal["left", "right"]) -> None:
    directory = tiny_models / "bert_mean"
    reference = AutoTokenizer.from_pretrained(directory, truncation_side=side)
    expected = reference(["cat dog red blue fast slow", "hello"], truncation=True, max_length=limit)
    encodings = encode(
        make(directory, max_tokens=limit), Text("cat dog red blue fast slow"), Text("hello"), truncate=side
    )
    assert [encoding.ids.tolist() for encoding in encodings] == expected["input_ids"]


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 60))
def test_share_fills_the_budget_and_spares_the_shorter(first: int, second: int, budget: int) -> None:
    kept_first, kept_second = share(first, second, budget)
    assert 0 <= kept_first <= first
    assert 0 <= kept_second <= second
    assert kept_first + kept_second == min(budget, first + second)
    if min(first, second) <= budget // 2:
        assert min(kept_first, kept_second) == min(first, second)


def test_special_tokens_alone_over_the_limit() -> None:
    assert kept_positions(np.full(4, SPECIAL), 3, "right") is None


def test_too_long_names_input_limit_and_length(tiny: TextTokenizer) -> None:
    error = refusal(tiny, Text("a"), Text("b"), Text("c"), Text("dog " * 200))
    assert error.message == "input[3]: 64 tokens allowed, got 202; `truncate` says which side may be cut"
    assert (error.code, error.param) == ("context_length_exceeded", "input[3]")
    assert refusal(tiny, Text("dog " * 200), is_single=True).param == "input"


def test_too_long_tells_what_of_it_is_the_prompt(bert: Path) -> None:
    tokenizer = make(bert, prompts={"long": "cat " * 60})
    with pytest.raises(RequestError) as caught:
        encode(tokenizer, Text("dog " * 10), prompt="cat " * 60)
    assert caught.value.message.startswith("input[0]: 64 tokens allowed, got 72, 60 of them the prompt's; `truncate`")


def test_truncated_keeps_the_count(tiny: TextTokenizer) -> None:
    encoding = encode(tiny, Text("dog " * 200), truncate="right")[0]
    assert (len(encoding.ids), encoding.num_tokens, encoding.truncated) == (64, 202, True)


@pytest.mark.parametrize("text", [Text("x" * 5_001), Text("x", "x" * 5_001)])
def test_too_many_characters_are_refused_whatever_truncate_says(tiny: TextTokenizer, text: Text) -> None:
    error = refusal(tiny, Text("ok"), text, truncate="right")
    assert error.message == "input[1]: 5000 characters allowed, got 5001"


def test_pair_frame_larger_than_the_limit(tmp_path: Path) -> None:
    wide = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    wide.post_processor = processors.TemplateProcessing(
        single="<s> $A <s>", pair="<s> $A <s> <s> $B:1 <s>:1", special_tokens=[("<s>", 0)]
    )
    wide.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 2}')
    tokenizer = make(tmp_path, max_tokens=3)
    assert refusal(tokenizer, Text("a", "a"), truncate="right").message == "input[0]: 3 tokens allowed, got 6"
