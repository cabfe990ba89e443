from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors import safe_open
from safetensors.numpy import load

from service.engine.formats import EncodingFormat, native_json, native_safetensors, num_bytes, openai_json
from service.engine.request import (
    EncodedItem,
    EncodeResult,
    LayerAttention,
    TensorItem,
    TensorResult,
    Token,
    TokenList,
)
from service.engine.truncation import ABSENT, SPECIAL
from service.engine.vectors import finish
from service.graph_spec import LayoutKind, LayoutSpec

RNG = np.random.default_rng(0)
EMBEDDING = RNG.standard_normal(8).astype(np.float32)
OUTPUTS = RNG.standard_normal((3, 8)).astype(np.float32)
WEIGHTS = RNG.random((2, 3, 3), dtype=np.float32)


def token_list(*tokens: Token) -> TokenList:
    """These tokens as columns."""
    texts = {token.id: token.text for token in tokens}
    offsets = [[ABSENT if end is None else end for end in (token.start, token.end)] for token in tokens]
    sequences = [SPECIAL if token.sequence is None else token.sequence for token in tokens]
    return TokenList(np.array([token.id for token in tokens]), np.array(offsets), np.array(sequences), texts.get)


TOKENS = (
    Token(101, "[CLS]", None, None, True, None),
    Token(4937, "cat", 0, 3, False, 0),
    Token(102, "[SEP]", None, None, True, None),
)
FULL = EncodedItem(
    num_tokens=9,
    num_used=3,
    truncated=True,
    embedding=EMBEDDING,
    outputs=OUTPUTS,
    tokens=token_list(*TOKENS),
    attention=(LayerAttention(5, (1, 0), WEIGHTS), LayerAttention(0, "mean", WEIGHTS[:1])),
)
BARE = EncodedItem(num_tokens=2, num_used=2, truncated=False, embedding=EMBEDDING)
RESULT = EncodeResult([FULL, BARE], num_tokens=5, embedding_space="space")
USAGE = {"prompt_tokens": 5, "total_tokens": 5}

TOKENS_JSON = [
    {"id": 101, "text": "[CLS]", "start": None, "end": None, "special": True},
    {"id": 4937, "text": "cat", "start": 0, "end": 3, "special": False},
    {"id": 102, "text": "[SEP]", "start": None, "end": None, "special": True},
]


def layer_json(layer: int, heads: Any, shape: list[int]) -> dict[str, Any]:
    return {"layer": layer, "heads": heads, "layout": "dense", "offset": None, "shape": shape}


def exact(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32)


def decode(text: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")


def test_native_float_json_is_exact_and_complete() -> None:
    reply = json.loads(native_json(RESULT, "m", "float"))
    full, bare = reply.pop("data")
    assert reply == {"object": "list", "model": "m", "usage": USAGE}
    assert np.array_equal(exact(full.pop("embedding")), EMBEDDING)
    outputs = full.pop("outputs")
    assert np.array_equal(exact(outputs.pop("data")), OUTPUTS)
    assert outputs == {"shape": [3, 8], "dtype": "float32"}
    five, zero = full.pop("attention")
    assert np.array_equal(exact(five.pop("weights")), WEIGHTS)
    assert np.array_equal(exact(zero.pop("weights")), WEIGHTS[:1])
    assert five == layer_json(5, [1, 0], [2, 3, 3])
    assert zero == layer_json(0, "mean", [1, 3, 3])
    assert full == {"index": 0, "num_tokens": 9, "truncated": True, "tokens": TOKENS_JSON}
    assert np.array_equal(exact(bare.pop("embedding")), EMBEDDING)
    assert bare == {"index": 1, "num_tokens": 2, "truncated": False}


def test_native_base64_json_is_packed_little_endian_float32() -> None:
    full = json.loads(native_json(RESULT, "m", "base64"))["data"][0]
    assert len(base64.b64decode(full["embedding"])) == 4 * 8
    assert np.array_equal(decode(full["embedding"]), EMBEDDING)
    assert np.array_equal(decode(full["outputs"]["data"]).reshape(full["outputs"]["shape"]), OUTPUTS)
    five = full["attention"][0]
    assert np.array_equal(decode(five["weights"]).reshape(five["shape"]), WEIGHTS)


def test_what_was_not_asked_for_is_absent() -> None:
    item = EncodedItem(num_tokens=2, num_used=2, truncated=False, tokens=token_list(*TOKENS))
    reply = json.loads(native_json(EncodeResult([item], 2, "space"), "m", "float"))
    assert reply["data"] == [{"index": 0, "num_tokens": 2, "truncated": False, "tokens": TOKENS_JSON}]


def test_tokens_of_a_pair_name_their_text() -> None:
    pair = (*TOKENS, Token(3899, "dog", 0, 3, False, 1))
    item = EncodedItem(num_tokens=4, num_used=4, truncated=False, tokens=token_list(*pair))
    tokens = json.loads(native_json(EncodeResult([item], 4, "space"), "m", "float"))["data"][0]["tokens"]
    assert [token["sequence"] for token in tokens] == [None, 0, None, 1]


@given(arrays(np.float32, 16, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_floats_survive_json_and_base64(values: np.ndarray[Any, Any]) -> None:
    result = EncodeResult([EncodedItem(1, 1, False, embedding=values)], 1, "space")
    floats, packed = (
        json.loads(native_json(result, "m", form))["data"][0]["embedding"] for form in ("float", "base64")
    )
    assert np.array_equal(exact(floats), values)
    assert np.array_equal(decode(packed), values)


@pytest.mark.parametrize(
    "odd", [np.asfortranarray(OUTPUTS), OUTPUTS[:, ::-1][:, ::-1], OUTPUTS.astype(">f4"), OUTPUTS.astype(np.float64)]
)
def test_any_memory_layout_gives_the_same_bytes(odd: np.ndarray[Any, Any]) -> None:
    def reply(values: np.ndarray[Any, Any]) -> list[bytes]:
        result = EncodeResult([EncodedItem(3, 3, False, outputs=values)], 3, "space")
        return [native_json(result, "m", "float"), native_json(result, "m", "base64"), native_safetensors(result, "m")]

    assert reply(odd) == reply(OUTPUTS)


def test_safetensors_reads_back(tmp_path: Any) -> None:
    content = native_safetensors(RESULT, "m")
    tensors = load(content)
    assert set(tensors) == {"0.embedding", "0.outputs", "0.attention.5", "0.attention.0", "1.embedding"}
    for name, expected in (("0.embedding", EMBEDDING), ("0.outputs", OUTPUTS), ("0.attention.5", WEIGHTS)):
        assert tensors[name].dtype == np.float32
        assert np.array_equal(tensors[name], expected)
    path = tmp_path / "reply.safetensors"
    path.write_bytes(content)
    with safe_open(path, framework="numpy") as file:
        reply = json.loads(file.metadata()["response"])
    assert (reply["model"], reply["usage"]) == ("m", USAGE)
    full, bare = reply["data"]
    assert (full["tokens"], full["num_tokens"], full["truncated"]) == (TOKENS_JSON, 9, True)
    assert full["attention"] == [layer_json(5, [1, 0], [2, 3, 3]), layer_json(0, "mean", [1, 3, 3])]
    assert bare == {"index": 1, "num_tokens": 2, "truncated": False}


def test_parts_of_one_kind_in_a_layer_each_have_a_name(tmp_path: Any) -> None:
    layouts: list[tuple[int, LayoutKind, int]] = [
        (0, "band", -3), (0, "band", 0), (0, "band", 4), (0, "strided", 0), (1, "band", -3),
    ]  # fmt: skip
    parts = tuple(
        LayerAttention(layer, (0, 1), WEIGHTS + place, LayoutSpec(kind=kind, offset=offset))
        for place, (layer, kind, offset) in enumerate(layouts)
    )
    path = tmp_path / "reply.safetensors"
    path.write_bytes(native_safetensors(TensorResult([TensorItem({}, parts)], 3), "m"))
    tensors = load(path.read_bytes())
    names = ["attention.0.band", "attention.0.band.1", "attention.0.band.2", "attention.0.strided", "attention.1.band"]
    assert set(tensors) == {f"0.{name}" for name in names}
    with safe_open(path, framework="numpy") as file:
        told = json.loads(file.metadata()["response"])["data"][0]["attention"]
    assert [(part["layer"], part["layout"], part["offset"]) for part in told] == [
        (part.layer, part.layout.kind, part.layout.offset if part.layout.kind == "band" else None) for part in parts
    ]
    for name, part in zip(names, parts, strict=True):
        assert np.array_equal(tensors[f"0.{name}"], part.weights)


def test_safetensors_without_arrays_still_has_its_reply() -> None:
    item = EncodedItem(num_tokens=3, num_used=3, truncated=False, tokens=token_list(*TOKENS))
    assert b"[CLS]" in native_safetensors(EncodeResult([item], 3, "space"), "m")


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_openai_reply_is_openai_s_shape(encoding_format: EncodingFormat) -> None:
    result = EncodeResult([BARE], 2, "space")
    reply = json.loads(openai_json(result, "m", encoding_format, frozenset({"embedding"})))
    (item,) = reply.pop("data")
    values = item.pop("embedding")
    assert np.array_equal(decode(values) if encoding_format == "base64" else exact(values), EMBEDDING)
    assert item == {"object": "embedding", "index": 0}
    assert reply == {"object": "list", "model": "m", "usage": {"prompt_tokens": 2, "total_tokens": 2}}


def test_openai_reply_has_the_native_fields_on_request() -> None:
    reply = json.loads(openai_json(RESULT, "m", "float", frozenset({"embedding", "attention", "tokens"})))
    native = json.loads(native_json(RESULT, "m", "float"))
    assert reply["data"] == [{"object": "embedding"} | item for item in native["data"]]


@pytest.mark.parametrize("dimensions", [None, 1, 5, 8])
def test_finished_vectors_have_length_one(dimensions: int | None) -> None:
    vector = finish(EMBEDDING, True, dimensions)
    prefix = EMBEDDING[:dimensions].astype(np.float64)
    assert vector.shape == prefix.shape
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, prefix / np.linalg.norm(prefix), atol=1e-7)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_length_one_at_any_scale(scale: float) -> None:
    vector = finish((EMBEDDING * np.float32(scale)).astype(np.float32), True, None)
    np.testing.assert_allclose(np.linalg.norm(vector), 1.0, atol=1e-6)


def test_zero_stays_zero_and_unnormalised_stays_as_it_is() -> None:
    assert not finish(np.zeros(4, dtype=np.float32), True, 2).any()
    assert np.array_equal(finish(EMBEDDING, False, 3), EMBEDDING[:3])
    rows = finish(np.stack([EMBEDDING, np.zeros_like(EMBEDDING)]), True, None)
    assert np.array_equal(rows[0], finish(EMBEDDING, True, None))
    assert not rows[1].any()


def test_finished_vector_does_not_share_memory() -> None:
    assert not np.shares_memory(finish(EMBEDDING, False, 4), EMBEDDING)


def test_a_large_answer_is_written_in_slices_that_join_to_the_same_json() -> None:
    weights = RNG.random((2, 200, 201), dtype=np.float32)
    tokens = tuple(Token(i, "cat", i, i + 1, False, i % 2) for i in range(9000))
    long = RNG.random(40_000, dtype=np.float32)
    item = EncodedItem(
        9, 9, False, embedding=long, tokens=token_list(*tokens), attention=(LayerAttention(0, (0, 1), weights),)
    )
    (found,) = json.loads(native_json(EncodeResult([item], 9, "space"), "m", "float"))["data"]
    assert np.array_equal(exact(found["attention"][0]["weights"]), weights)
    assert np.array_equal(exact(found["embedding"]), long)
    keys = ("id", "text", "start", "end", "special", "sequence")
    assert found["tokens"] == [{key: getattr(token, key) for key in keys} for token in tokens]


def test_many_items_are_written_like_few() -> None:
    many = json.loads(native_json(EncodeResult([FULL, BARE] * 100, 5, "space"), "m", "float"))["data"]
    few = json.loads(native_json(RESULT, "m", "float"))["data"]
    assert many == [few[index % 2] | {"index": index} for index in range(200)]


@pytest.mark.parametrize(("encoding_format", "bytes_per_value"), [("float", 12.5), ("base64", 5.4)])
def test_the_size_of_an_answer_is_known_before_it_is_written(
    encoding_format: EncodingFormat, bytes_per_value: float
) -> None:
    tokens = tuple(Token(4937, "cat", i, i + 3, False, 0) for i in range(1000))
    outputs = RNG.standard_normal((1000, 8)).astype(np.float32)
    result = EncodeResult([EncodedItem(1000, 1000, False, outputs=outputs, tokens=token_list(*tokens))], 1000, "space")
    written = len(native_json(result, "m", encoding_format))
    assert num_bytes(result, bytes_per_value) == pytest.approx(written, rel=0.15)
