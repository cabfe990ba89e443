from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer

from service.engine.request import Text, TokenIds
from service.engine.tokenizer import COSTLY_CHARS, TextTokenizer
from service.errors import StartupError
from service.manifest import TextSpec
from tests.fixtures.texts import encode, make, refusal

HARD_TEXTS = [
    "",
    "   ",
    "\n\t",
    "\u200b\u00a0",
    "hello world",
    "a" * 100,
    "a" * 101,
    "hel\u0000lo",
    "hello\u0007 world",
    "👨‍👩‍👧 hello",
    "❤️",
    "שלום",
    "中国hello",
    "he\u0301llo",
    "hello [SEP] world [CLS]",
]


@pytest.fixture(scope="module")
def reference(bert: Path) -> Any:
    return AutoTokenizer.from_pretrained(bert)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_ids_and_offsets_equal_the_reference(bert: Path, reference: Any, text: str) -> None:
    tokenizer = make(bert, max_tokens=512)
    expected = reference(text, return_offsets_mapping=True)
    fast, slow = (encode(tokenizer, Text(text), with_tokens=asked)[0] for asked in (False, True))
    assert fast.ids.tolist() == slow.ids.tolist() == expected["input_ids"]
    assert fast.type_ids.tolist() == expected["token_type_ids"]
    assert fast.offsets is None
    assert not fast.truncated
    found = [(token.start, token.end) for token in tokenizer.tokens(slow)[1:-1]]
    assert found == expected["offset_mapping"][1:-1]


@pytest.mark.parametrize("text", HARD_TEXTS)
@pytest.mark.real_model
def test_ids_of_the_real_model_equal_the_reference(minilm_dir: Path, text: str) -> None:
    expected = AutoTokenizer.from_pretrained(minilm_dir)(text)["input_ids"]
    assert encode(make(minilm_dir, max_tokens=512), Text(text))[0].ids.tolist() == expected


@pytest.mark.parametrize(
    ("text", "num_tokens"), [("", 2), ("   ", 2), ("a" * 100, 102), ("a" * 101, 3), ("שלום", 3), ("❤️", 3)]
)
def test_number_of_tokens(bert: Path, text: str, num_tokens: int) -> None:
    assert encode(make(bert, max_tokens=512), Text(text))[0].num_tokens == num_tokens


def test_tokens_point_into_the_text_as_sent(tiny: TextTokenizer) -> None:
    encoding = encode(tiny, Text("hel\0lo  Cat"), with_tokens=True)[0]
    tokens = tiny.tokens(encoding)
    assert [(t.text, t.start, t.end, t.special, t.sequence) for t in tokens] == [
        ("[CLS]", None, None, True, None),
        ("hello", 0, 6, False, 0),
        ("cat", 8, 11, False, 0),
        ("[SEP]", None, None, True, None),
    ]


def test_tokens_need_to_be_asked_for(tiny: TextTokenizer) -> None:
    with pytest.raises(ValueError, match="without tokens"):
        tiny.tokens(encode(tiny, Text("cat"))[0])


def test_half_an_emoji_is_a_replacement_character(minilm_dir: Path) -> None:
    tokenizer = make(minilm_dir, max_tokens=32)
    half, replaced, whole = encode(
        tokenizer, Text("ok \ud83d cat"), Text("ok \ufffd cat"), Text("ok 😀 cat"), with_tokens=True
    )
    assert half.ids.tolist() == replaced.ids.tolist() != whole.ids.tolist()
    assert [(t.start, t.end) for t in tokenizer.tokens(half)[1:-1]] == [(0, 2), (5, 8)]


def test_composed_and_decomposed_letters_are_equal(minilm_dir: Path) -> None:
    composed, decomposed = encode(make(minilm_dir), Text("h\u00e9llo"), Text("he\u0301llo"))
    assert composed.ids.tolist() == decomposed.ids.tolist()


def test_baked_in_truncation_and_padding_do_not_count(minilm_dir: Path) -> None:
    baked = json.loads((minilm_dir / "tokenizer.json").read_text())
    assert baked["truncation"]["max_length"] == 128
    assert baked["padding"]["strategy"] == {"Fixed": 128}
    short, long = encode(make(minilm_dir, max_tokens=256), Text("dog"), Text("dog " * 200))
    assert (len(short.ids), len(long.ids), long.truncated) == (3, 202, False)


def test_pair_equals_the_reference(tiny: TextTokenizer, reference: Any) -> None:
    expected = reference("a cat", "the river bank")
    encoding = encode(tiny, Text("a cat", "the river bank"), with_tokens=True)[0]
    assert encoding.ids.tolist() == expected["input_ids"]
    assert encoding.type_ids.tolist() == expected["token_type_ids"]
    assert [t.sequence for t in tiny.tokens(encoding)] == [None, 0, 0, None, 1, 1, 1, None]


def test_bad_input_is_found_before_anything_is_tokenised(tiny: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("tokenised before everything was checked")

    monkeypatch.setattr(TextTokenizer, "_tokenize", fail)
    assert "input[1]" in refusal(tiny, Text("good"), TokenIds((99_999,))).message


def test_a_token_without_a_vector_is_refused(bert: Path) -> None:
    tokenizer = make(bert, vocab_size=60)
    assert encode(tokenizer, Text("zzz"))[0].num_tokens == 5
    error = refusal(tokenizer, Text("zzz"), Text("river bank"))
    assert "input[1]" in error.message
    assert "0…59" in error.message


def test_a_text_without_any_token_is_refused(tmp_path: Path) -> None:
    plain = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 2}')
    tokenizer = make(tmp_path)
    assert encode(tokenizer, TokenIds((1, 0)), Text("b"))[0].ids.tolist() == [1, 0]
    assert "input[1]" in refusal(tokenizer, Text("b"), Text(" ")).message


@pytest.mark.parametrize("content", [None, "not json", "{}"])
def test_unreadable_tokenizer(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    spec = TextSpec(max_tokens=8, max_tokens_source="test", vocab_size=9, pad_token_id=0, token_dim=4)
    with pytest.raises(StartupError, match=r"tokenizer\.json"):
        TextTokenizer(path, spec, max_text_chars=10, token_ids="framed")


def test_is_costly() -> None:
    assert not TextTokenizer.is_costly([Text("x" * (COSTLY_CHARS // 2))])
    assert TextTokenizer.is_costly([Text("x"), Text("x" * (COSTLY_CHARS // 2), "x" * (COSTLY_CHARS // 2))])
    assert TextTokenizer.is_costly([TokenIds((1,) * 100_000)])
    assert TextTokenizer.is_costly([Text("")] * 2048)


@given(st.lists(st.integers(0, 300_000), max_size=20))
def test_parts_hold_every_input_once_in_order_and_end_when_they_are_large(lengths: list[int]) -> None:
    inputs = [Text("x" * length) for length in lengths]
    parts = list(TextTokenizer.parts(inputs))
    assert [index for part in parts for index in part] == list(range(len(inputs)))
    for part in parts:
        assert sum(lengths[index] for index in part[:-1]) < 131_072


def test_other_threads_run_while_a_long_text_is_tokenised(minilm_dir: Path) -> None:
    text = TextSpec(max_tokens=256, max_tokens_source="test", vocab_size=30_522, pad_token_id=0, token_dim=384)
    tokenizer = TextTokenizer(minilm_dir / "tokenizer.json", text, max_text_chars=10**7, token_ids="framed")
    num_ticks, done = 0, threading.Event()

    def work() -> None:
        encode(tokenizer, Text("the quick brown fox " * 50_000), truncate="right")
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.wait(0.001):
        num_ticks += 1
    worker.join()
    assert num_ticks > 20


def test_many_threads_get_what_one_gets(bert: Path) -> None:
    tokenizer = make(bert, max_tokens=32)
    words = "cat dog red blue fast slow good bad river bank".split()

    def job(number: int) -> Callable[[], list[int]]:
        text = " ".join(words[(number + i) % 10] for i in range(1 + number * 7 % 60))
        pair = text[::-1] if number % 3 == 0 else None
        side, asked = ("left", "right")[number % 2], number % 5 == 0
        return lambda: encode(tokenizer, Text(text, pair), truncate=side, with_tokens=asked)[0].ids.tolist()

    jobs = [job(number) for number in range(2_000)]
    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(lambda run: run(), jobs)) == [run() for run in jobs]
