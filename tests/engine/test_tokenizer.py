from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors
from transformers import AutoTokenizer

from service.bundle import TextSpec
from service.engine.request import Input, Text, TokenIds
from service.engine.tokenizer import COSTLY_CHARS, Encoding, TextTokenizer
from service.engine.truncation import SPECIAL, kept_positions, share
from service.errors import RequestError, StartupError

CLS, SEP, UNK = 2, 3, 1
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


def make(directory: Path, *, token_ids: Literal["framed", "verbatim"] = "framed", **spec: Any) -> TextTokenizer:
    config = json.loads((directory / "config.json").read_text())
    fields = {"max_tokens": 64, "max_tokens_source": "test", "vocab_size": config["vocab_size"], "pad_token_id": 0}
    text = TextSpec(**(fields | spec))
    return TextTokenizer(directory / "tokenizer.json", text, max_text_chars=5_000, token_ids=token_ids)


def encode(tokenizer: TextTokenizer, *inputs: Input, **options: Any) -> list[Encoding]:
    defaults = {
        "truncate": "error",
        "prompt": "",
        "add_special_tokens": False,
        "with_tokens": False,
        "param": "input",
    }
    return tokenizer.encode(inputs, **(defaults | options))


def refusal(tokenizer: TextTokenizer, *inputs: Input, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        encode(tokenizer, *inputs, **options)
    assert caught.value.status == 400
    return caught.value


@pytest.fixture(scope="module")
def bert(tiny_models: Path) -> Path:
    return tiny_models / "bert_mean"


@pytest.fixture(scope="module")
def tiny(bert: Path) -> TextTokenizer:
    return make(bert)


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
    num_tokens = len(reference.encode(*texts).ids)
    reference.enable_truncation(limit, strategy="longest_first", direction=side)
    expected = reference.encode(*texts)
    tokenizer = make(directory, max_tokens=limit)
    encoding = encode(tokenizer, Text(*texts), truncate=side, with_tokens=True)[0]
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


def test_pair_equals_the_reference(tiny: TextTokenizer, reference: Any) -> None:
    expected = reference("a cat", "the river bank")
    encoding = encode(tiny, Text("a cat", "the river bank"), with_tokens=True)[0]
    assert encoding.ids.tolist() == expected["input_ids"]
    assert encoding.type_ids.tolist() == expected["token_type_ids"]
    assert [t.sequence for t in tiny.tokens(encoding)] == [None, 0, 0, None, 1, 1, 1, None]


def test_too_long_names_input_limit_and_length(tiny: TextTokenizer) -> None:
    error = refusal(tiny, Text("a"), Text("b"), Text("c"), Text("dog " * 200))
    assert error.message == "input[3]: 64 tokens allowed, got 202"
    assert (error.code, error.param) == ("context_length_exceeded", "input[3]")
    assert refusal(tiny, Text("dog " * 200)).param == "input"


def test_truncated_keeps_the_count(tiny: TextTokenizer) -> None:
    encoding = encode(tiny, Text("dog " * 200), truncate="right")[0]
    assert (len(encoding.ids), encoding.num_tokens, encoding.truncated) == (64, 202, True)


@pytest.mark.parametrize("text", [Text("x" * 5_001), Text("x", "x" * 5_001)])
def test_too_many_characters_are_refused_whatever_truncate_says(tiny: TextTokenizer, text: Text) -> None:
    error = refusal(tiny, Text("ok"), text, truncate="right")
    assert error.message == "input[1]: 5000 characters allowed, got 5001"


def test_ids_are_used_verbatim(tiny: TextTokenizer) -> None:
    text = encode(tiny, Text("a cat is on the river bank"))[0]
    ids = encode(tiny, TokenIds(tuple(text.ids.tolist())), with_tokens=True)[0]
    assert ids.ids.tolist() == text.ids.tolist()
    assert not ids.type_ids.any()
    tokens = tiny.tokens(ids)
    assert [t.special for t in tokens] == [True] + [False] * 7 + [True]
    assert tokens[2].text == "cat"
    assert {(t.start, t.end) for t in tokens} == {(None, None)}


def test_separator_inside_a_list_of_ids_is_special(tiny: TextTokenizer) -> None:
    encoding = encode(tiny, TokenIds((CLS, 40, SEP, 41, SEP)), with_tokens=True)[0]
    assert [t.special for t in tiny.tokens(encoding)] == [True, False, True, False, True]


def test_empty_ids(tiny: TextTokenizer) -> None:
    error = refusal(tiny, TokenIds(()))
    assert "input[0]" in error.message
    assert error.param == "input"


@pytest.mark.parametrize(
    ("bad", "shown"),
    [(99_999, "99999"), (-1, "-1"), (10**26, "beyond 64 bits"), (-(10**5000), "beyond 64 bits")],
    ids=["large", "negative", "huge", "endless"],
)
@pytest.mark.parametrize("token_ids", ["framed", "verbatim"])
def test_ids_out_of_range(bert: Path, bad: int, shown: str, token_ids: Literal["framed", "verbatim"]) -> None:
    tokenizer = make(bert, token_ids=token_ids)
    last = json.loads((bert / "config.json").read_text())["vocab_size"] - 1
    error = refusal(tokenizer, Text("fine"), TokenIds((CLS, bad, SEP)))
    assert error.param == "input"
    for part in ("input[1]", "index 1", f"0…{last}", shown):
        assert part in error.message


@pytest.mark.parametrize("ids", [(40, 41), (0, 0, 0), (CLS,), (SEP, CLS), (CLS, 40), (40, SEP)])
def test_ids_without_the_frame_are_foreign(tiny: TextTokenizer, ids: tuple[int, ...]) -> None:
    error = refusal(tiny, TokenIds(ids))
    assert (error.code, error.param) == ("foreign_token_ids", "input")
    assert "check_embedding_ctx_length=False" in error.message


def test_ids_are_framed_on_request_or_taken_verbatim(bert: Path, tiny: TextTokenizer) -> None:
    framed = encode(tiny, TokenIds((40, 41)), add_special_tokens=True)[0]
    verbatim = encode(make(bert, token_ids="verbatim"), TokenIds((40, 41)))[0]
    assert framed.ids.tolist() == [CLS, 40, 41, SEP]
    assert verbatim.ids.tolist() == [40, 41]


@pytest.mark.parametrize(
    ("side", "framed", "bare"),
    [("right", [CLS, 10, 11, SEP], [10, 11, 12, 13]), ("left", [CLS, 14, 15, SEP], [12, 13, 14, 15])],
)
def test_ids_are_cut_inside_their_frame(bert: Path, side: str, framed: list[int], bare: list[int]) -> None:
    tokenizer = make(bert, max_tokens=4, token_ids="verbatim")
    ids = tuple(range(10, 16))
    encodings = encode(tokenizer, TokenIds((CLS, *ids, SEP)), TokenIds(ids), truncate=side)
    assert [encoding.ids.tolist() for encoding in encodings] == [framed, bare]
    assert refusal(tokenizer, TokenIds(ids)).code == "context_length_exceeded"


def test_a_list_of_separators_can_be_cut(bert: Path) -> None:
    encoding = encode(make(bert, max_tokens=4), TokenIds((CLS, *[SEP] * 9)), truncate="right", with_tokens=True)[0]
    assert encoding.ids.tolist() == [CLS, SEP, SEP, SEP]


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
    plain.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    plain.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 2}')
    tokenizer = make(tmp_path)
    assert encode(tokenizer, TokenIds((1, 0)), Text("b"))[0].ids.tolist() == [1, 0]
    assert "input[1]" in refusal(tokenizer, Text("b"), Text(" ")).message


def test_pair_frame_larger_than_the_limit(tmp_path: Path) -> None:
    wide = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    wide.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<s> $A <s>", pair="<s> $A <s> <s> $B:1 <s>:1", special_tokens=[("<s>", 0)]
    )
    wide.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 2}')
    tokenizer = make(tmp_path, max_tokens=3)
    assert refusal(tokenizer, Text("a", "a"), truncate="right").message == "input[0]: 3 tokens allowed, got 6"


@pytest.mark.parametrize("content", [None, "not json", "{}"])
def test_unreadable_tokenizer(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    spec = TextSpec(max_tokens=8, max_tokens_source="test", vocab_size=9, pad_token_id=0)
    with pytest.raises(StartupError, match=r"tokenizer\.json"):
        TextTokenizer(path, spec, max_text_chars=10, token_ids="framed")


PROMPTS = {"query": "a query ", "doc": "", "glued": "cat"}


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
    encoding = encode(tokenizer, Text("red dog"), prompt="a cat ", truncate="left")[0]
    assert encoding.pooling_mask is not None
    assert encoding.pooling_mask.tolist() == [0, 1, 1, 1]


def test_is_costly() -> None:
    assert not TextTokenizer.is_costly([Text("x" * COSTLY_CHARS)])
    assert TextTokenizer.is_costly([Text("x"), Text("x" * (COSTLY_CHARS - 1), "x")])
    assert not TextTokenizer.is_costly([TokenIds((1,) * 100_000)])


def test_other_threads_run_while_a_long_text_is_tokenised(minilm_dir: Path) -> None:
    text = TextSpec(max_tokens=256, max_tokens_source="test", vocab_size=30_522, pad_token_id=0)
    tokenizer = TextTokenizer(minilm_dir / "tokenizer.json", text, max_text_chars=10**7, token_ids="framed")
    num_ticks, done = 0, threading.Event()
    worker = threading.Thread(
        target=lambda: (encode(tokenizer, Text("the quick brown fox " * 50_000), truncate="right"), done.set())
    )
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
