"""What the body parser takes and refuses: strictly, cheaply, and without repeating the caller's text."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.api.body import Body, parse, write
from service.api.encode import EncodeBody
from service.api.openai import EmbeddingsBody
from service.engine.request import EncodedItem, EncodeResult
from service.errors import RequestError

JSON = {"content-type": "application/json"}
ROUTES = ["/v1/encode", "/v1/embeddings", "/v1/tokenize"]


async def post_raw(client: httpx2.AsyncClient, path: str, body: bytes, **headers: str) -> httpx2.Response:
    return await client.post(path, content=body, headers=JSON | headers)


def check_error(answer: httpx2.Response, status: int, *, param: str | None = None, code: str | None = None) -> str:
    """The error body that every route has. -> its message"""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.content) <= 8192
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    return str(error["message"])


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b'{"input":NaN}',
        b'{"input":"a","dimensions":Infinity}',
        b'{"input":"a","dimensions":1e400}',
        b'{"input":1e400}',
        b'{"input":"\xff\xfe"}',
        b'{"input":"\xed\xa0\xbd"}',
        b'{"input":',
        b"[]",
        b'"x"',
        b"null",
        b"",
        b"{}",
        b"\x89PNG\r\n\x1a\n\x00\x00",
        b'{"input":' + b"9" * 100_000 + b"}",
        b"[" * 100_000,
        b'{"input":' + b"[" * 100_000,
        b'{"input":[' + b"null," * 50_000 + b"null]}",
        b'{"input":"a"} trailing',
        b'{"input":{"a":1}}',
        b'{"input":[{"a":1}]}',
        b'{"input":[]}',
        b'{"input":[["a",1]]}',
        b'{"input":["a",1]}',
        b'{"input":[1,"a"]}',
        b'{"input":"a","model":3}',
        b'{"input":"a","truncate":"middle"}',
        b'{"input":"a","truncate":1}',
    ],
    ids=lambda body: repr(body[:30]),
)
async def test_a_bad_body_is_a_cheap_400_and_harms_nobody(client: httpx2.AsyncClient, path: str, body: bytes) -> None:
    if path == "/v1/tokenize" and b"dimensions" in body:
        body = body.replace(b'"dimensions"', b'"prompt_name"')
    started_s = time.perf_counter()
    answer = await post_raw(client, path, body)
    assert time.perf_counter() - started_s < 0.5
    check_error(answer, 400)
    assert (await client.post(path, json={"input": "a cat"})).status_code == 200


@pytest.mark.parametrize(
    ("ids", "index"),
    [
        ("[99999]", 0),
        ("[2,-1]", 1),
        ("[true,false]", 0),
        ("[1.5]", 0),
        ("[2,1e2]", 1),
        ("[99999999999999999999999999]", 0),
    ],
)
async def test_a_bad_id_is_told_with_its_index_and_the_allowed_range(
    client: httpx2.AsyncClient, ids: str, index: int
) -> None:
    for path in ("/v1/embeddings", "/v1/encode"):
        answer = await post_raw(client, path, b'{"input":' + ids.encode() + b"}")
        message = check_error(answer, 400, param="input")
        assert f"at index {index}" in message
        assert "0…68" in message


async def test_an_empty_list_of_ids_names_its_place(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/embeddings", json={"input": [[]]})
    assert "input[0]" in check_error(answer, 400)


@pytest.mark.parametrize("value", ["0", "-1", "true", "8.5", "5", "4.0", '"4"', "[]"])
@pytest.mark.parametrize("path", ["/v1/encode", "/v1/embeddings"])
async def test_bad_dimensions_are_refused_by_name(client: httpx2.AsyncClient, path: str, value: str) -> None:
    answer = await post_raw(client, path, b'{"input":"a","dimensions":' + value.encode() + b"}")
    check_error(answer, 400, param="dimensions")


@pytest.mark.parametrize(
    ("escaped", "same"),
    [
        (r"lone \ud83d surrogate", "lone \ufffd surrogate"),
        (r"\uDE00 low \ud83d\ud83d\ude00", "\ufffd low \ufffd😀"),
        (r"\ud83d\ude00", "😀"),
        (r"\\ud83d", r"\ud83d"),
        (r"\\\ud83d", "\\\ufffd"),
        (r"end \uD800", "end \ufffd"),
    ],
)
def test_a_lone_surrogate_is_the_replacement_character(escaped: str, same: str) -> None:
    body = parse(b'{"input":["ok","' + escaped.encode() + b'"]}', EmbeddingsBody)
    assert body.input == ["ok", same]


@given(st.text(alphabet=st.sampled_from(["\\", "u", "d", "8", "3", "\ud83d", "\ude00", "\udbff", '"', "é", "\n", "a"])))
def test_any_json_text_is_read_as_the_standard_library_reads_it(text: str) -> None:
    body = json.dumps({"input": text}).encode()
    expected = json.loads(body)["input"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    # Python joins a high and a low half that stand side by side; so does every JSON reader.
    assert parse(body, EmbeddingsBody).input == expected


def refusal_of(content: bytes, model: type[Body]) -> RequestError | None:
    try:
        parse(content, model)
    except RequestError as error:
        return error
    return None


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_no_body_makes_the_parser_fail_in_another_way(body: bytes) -> None:
    for model in (EncodeBody, EmbeddingsBody):
        for content in (body, b'{"input":' + body + b"}", b'{"include":' + body + b"}", b'{"attention":' + body + b"}"):
            refusal = refusal_of(content, model)
            assert refusal is None or len(refusal.message) < 500


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("attenton", "attention"),
        ("encodingformat", "encoding_format"),
        ("inputs", "input"),
        ("dimension", "dimensions"),
    ],
)
async def test_an_unknown_native_field_is_refused_with_the_nearest_name(
    client: httpx2.AsyncClient, field: str, hint: str
) -> None:
    answer = await client.post("/v1/encode", json={"input": "a", field: 1})
    message = check_error(answer, 400, param=field, code="unknown_field")
    assert message == f"unknown field `{field}`; did you mean `{hint}`?"


async def test_an_unknown_field_that_is_no_name_is_not_repeated(client: httpx2.AsyncClient) -> None:
    secret = "my secret text, sent as a key"
    message = check_error(await client.post("/v1/encode", json={"input": "a", secret: 1}), 400, code="unknown_field")
    assert secret not in message
    assert "`dimensions`" in message


async def test_nested_options_are_named_in_full(client: httpx2.AsyncClient) -> None:
    async def refuse(**options: Any) -> str:
        body = {"input": "a", "include": ["attention"], "attention": options}
        return check_error(await client.post("/v1/encode", json=body), 400)

    assert "attention.layers" in await refuse(layers="first")
    assert "attention.heads" in await refuse(heads=[True])
    assert "unknown field `attention.layer`; did you mean `layers`?" in await refuse(layer=0)


async def test_options_that_would_do_nothing_are_refused(client: httpx2.AsyncClient) -> None:
    body = {"input": "a", "attention": {"layers": "all"}}
    for path in ("/v1/encode", "/v1/embeddings"):
        assert "include" in check_error(await client.post(path, json=body), 400, param="attention")
    answer = await client.post("/v1/encode", json={"input": "a", "tensors": {}})
    check_error(answer, 400, param="tensors")


@pytest.mark.parametrize("path", ROUTES)
async def test_only_plain_json_is_taken(client: httpx2.AsyncClient, path: str) -> None:
    body = b'{"input":"a cat"}'
    for headers in (
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": ""},
        JSON | {"content-encoding": "gzip"},
    ):
        answer = await client.post(path, content=body, headers=headers)
        message = check_error(answer, 415, code="unsupported_media_type")
        assert ("curl" in message) == ("form" in headers["content-type"])
    for content_type in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"):
        answer = await client.post(
            path, content=body, headers={"content-type": content_type, "content-encoding": "identity"}
        )
        assert answer.status_code == 200


async def test_items_are_counted_before_anything_is_done(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/embeddings", json={"input": ["a"] * 2049})
    assert "2048 items allowed, got 2049" in check_error(answer, 400, param="input", code="too_many_items")


async def test_no_refusal_repeats_what_was_sent(client: httpx2.AsyncClient) -> None:
    secret = "Zebra-Quartz-41"
    bodies: list[dict[str, Any]] = [
        {"input": secret, "encoding_format": secret},
        {"input": secret, "model": secret},
        {"input": secret, "truncate": secret},
        {"input": [secret, 3]},
        {"input": [secret] * 3000},
        {"input": secret * 200},
        {"input": secret, "include": [secret]},
        {"input": secret, "embedding_space": secret},
        {"input": secret, "prompt_name": secret},
    ]
    for path in ("/v1/encode", "/v1/embeddings"):
        for body in bodies:
            answer = await client.post(path, json=body)
            assert answer.status_code in (400, 404, 412), body
            assert secret not in answer.text, body


@pytest.mark.parametrize(("num_values", "is_beside"), [(1000, False), (100_000, True)])
async def test_a_large_answer_is_built_beside_the_event_loop(num_values: int, is_beside: bool) -> None:
    item = EncodedItem(2, 2, False, embedding=np.zeros(num_values, dtype=np.float32))
    threads: list[int] = []

    def build() -> bytes:
        threads.append(threading.get_ident())
        return b"{}"

    assert await write(build, EncodeResult([item], 2, "space"), "float") == b"{}"
    assert (threads != [threading.get_ident()]) == is_beside


async def test_a_large_body_is_read_like_a_small_one(client: httpx2.AsyncClient) -> None:
    spaces = b" " * 300_000
    answer = await post_raw(client, "/v1/tokenize", b'{"input":"cat \\ud83d"' + spaces + b"}")
    assert [token["text"] for token in answer.json()["data"][0]["tokens"]] == ["[CLS]", "cat", "[SEP]"]
    answer = await post_raw(client, "/v1/tokenize", b'{"input":3' + spaces + b"}")
    check_error(answer, 400, param="input")
