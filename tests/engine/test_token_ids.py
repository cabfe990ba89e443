from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from service.engine.request import Text, TokenIds
from service.engine.token_ids import Frame
from service.engine.tokenizer import TextTokenizer
from service.errors import StartupError
from tests.fixtures.texts import CLS, SEP, encode, make, refusal


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


def test_a_tokenizer_that_fails_on_any_text_is_refused(bert: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((bert / name).read_bytes())
    document = json.loads((bert / "tokenizer.json").read_text("utf-8"))
    document["model"]["vocab"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    with pytest.raises(StartupError, match=r"tokenizer\.json: the tokenizer cannot encode 'a': .*\[UNK\]"):
        make(tmp_path)


def test_empty_ids(tiny: TextTokenizer) -> None:
    error = refusal(tiny, TokenIds(()))
    assert "input[0]" in error.message
    assert error.param == "input[0]"


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
    error = refusal(tiny, TokenIds(ids), is_single=True)
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


def test_range_ends_at_the_vocabulary(bert: Path) -> None:
    tokenizer = make(bert, vocab_size=60)
    assert encode(tokenizer, TokenIds((CLS, 0, 59, SEP)))[0].num_tokens == 4
    assert "got 60 at index 1" in refusal(tokenizer, TokenIds((CLS, 60, SEP))).message


def test_one_token_is_not_both_ends_of_a_frame() -> None:
    frame = Frame((0,), (0,))
    assert frame.fits((0, 0))
    assert not frame.fits((0,))
