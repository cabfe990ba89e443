"""What a right reply is: every way to be wrong has its reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from loadtest import checks
from loadtest.errors import BadReply

FINITE = st.floats(-1e6, 1e6)


def reply(*vectors: object) -> bytes:
    items = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return json.dumps({"object": "list", "data": items}).encode()


@given(nps.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=FINITE))
def test_what_was_sent_is_what_is_read(vectors: checks.Array) -> None:
    items = checks.read_items(reply(*vectors.tolist()), len(vectors))
    assert np.array_equal(checks.read_vectors(items), vectors)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the reply is not JSON"),
        (b'{"data": [{"index": 0', "the reply is not JSON"),
        (b"[]", "the reply has no list of objects `data`"),
        (b'{"data": {}}', "the reply has no list of objects `data`"),
        (b'{"data": [1, 2]}', "the reply has no list of objects `data`"),
        (reply([1.0]), "wrong number of vectors: 1 for 2 inputs"),
        (reply([1.0], [1.0], [1.0]), "wrong number of vectors: 3 for 2 inputs"),
        (b'{"data": [{"index": 1}, {"index": 0}]}', "the indices of `data` are not in order: [1, 0]"),
        (b'{"data": [{"index": 0}, {"index": 0}]}', "the indices of `data` are not in order: [0, 0]"),
        (b'{"data": [{}, {}]}', "the indices of `data` are not in order: [None, None]"),
        (b'{"data": [{"index": false}, {"index": true}]}', "the indices of `data` are not in order: [False, True]"),
        (b"[" * 200_000, "the reply is not JSON"),
    ],
)
def test_a_wrong_list_is_told(body: bytes, reason: str) -> None:
    with pytest.raises(BadReply) as caught:
        checks.read_items(body, 2)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        ([[1.0, float("nan")]], "embedding: holds numbers that are not finite"),
        ([[1.0, float("inf")]], "embedding: holds numbers that are not finite"),
        ([[1.0, None]], "embedding: holds numbers that are not finite"),
        ([None], "embedding: is not a list of numbers"),
        ([[1.0, 10**400]], "embedding: holds numbers that no float64 holds"),
        (["AACAPw=="], "embedding: is not a list of numbers"),
        ([["1.0"]], "embedding: is not a list of numbers"),
        ([[True]], "embedding: is not a list of numbers"),
        ([[1.0, [2.0]]], "embedding: is not a list of numbers"),
        ([[]], "the embeddings are not vectors of one dimension"),
        ([[[1.0]]], "the embeddings are not vectors of one dimension"),
        ([[1.0], [1.0, 2.0]], "the embeddings are not vectors of one dimension: (1,) and (2,)"),
    ],
)
def test_a_wrong_vector_is_told(vectors: list[object], reason: str) -> None:
    items = checks.read_items(reply(*vectors), len(vectors))
    with pytest.raises(BadReply) as caught:
        checks.read_vectors(items)
    assert str(caught.value).startswith(reason)


def test_dimension_and_norm_are_those_of_the_known_answers() -> None:
    vectors = np.array([[0.6, 0.8], [1.0, 0.0]])
    checks.check_vectors(vectors, dim=2, is_unit=True)
    checks.check_vectors(2 * vectors, dim=2, is_unit=False)
    with pytest.raises(BadReply, match="wrong dimension: 2, 3 in the known answers"):
        checks.check_vectors(vectors, dim=3, is_unit=True)
    with pytest.raises(BadReply, match=r"a vector's norm is not 1: 1\.100000"):
        checks.check_vectors(vectors * [[1.0], [1.1]], dim=2, is_unit=True)


@pytest.mark.parametrize(
    "body", [b'{"error": {"message": "out of  luck"}}', b'{"error": "out of luck"}', b"out of luck"]
)
def test_a_status_is_told_with_the_servers_own_words(body: bytes) -> None:
    with pytest.raises(BadReply, match="status 500: out of luck") as caught:
        checks.check_status(500, body)
    assert not caught.value.is_overload
    checks.check_status(200, body)


@pytest.mark.parametrize("status", [429, 503, 504])
def test_a_server_that_has_too_much_to_do_is_not_wrong(status: int) -> None:
    with pytest.raises(BadReply) as caught:
        checks.check_status(status, b"")
    assert caught.value.is_overload


def scores(*pairs: tuple[object, object]) -> dict[str, Any]:
    return {"scores": [{"label": label, "score": score} for label, score in pairs]}


def test_scores_are_read_by_the_names_of_their_labels() -> None:
    items = [scores(("b", 0.75), ("a", 0.25)), scores(("a", 2.0), ("b", -1.0))]
    assert np.array_equal(checks.read_scores(items), [[0.25, 0.75], [2.0, -1.0]])


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([{}], "an item has no list of objects `scores`"),
        ([{"scores": ["a"]}], "an item has no list of objects `scores`"),
        ([scores(("a", 0.9), ("a", 0.1))], "the labels of an item are not names, each once"),
        ([scores((1, 0.9))], "the labels of an item are not names, each once"),
        ([scores(("a", 0.1), ("b", 0.9))], "the best does not come first"),
        ([scores(("a", None))], "scores: holds numbers that are not finite"),
        ([scores(("a", "0.9"))], "scores: is not a list of numbers"),
        ([scores(("a", 0.9)), scores(("b", 0.9))], "the labels of two texts differ"),
        ([scores()], "the embeddings are not vectors of one dimension"),
    ],
)
def test_wrong_scores_are_told(items: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(BadReply) as caught:
        checks.read_scores(items)
    assert str(caught.value).startswith(reason)


def ranks(*pairs: tuple[object, object]) -> bytes:
    return json.dumps({"results": [{"index": index, "relevance_score": score} for index, score in pairs]}).encode()


def test_ranks_are_read_in_the_order_of_the_documents() -> None:
    assert np.array_equal(checks.read_ranks(ranks((2, 3.0), (0, 1.5), (1, 1.5)), 3), [[1.5], [1.5], [3.0]])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the reply is not JSON"),
        (b'{"data": []}', "the reply has no list of objects `results`"),
        (b'{"results": [1]}', "the reply has no list of objects `results`"),
        (ranks((0, 1.0)), "`results` are not of every document, each once: [0]"),
        (ranks((0, 1.0), (0, 0.5)), "`results` are not of every document, each once: [0, 0]"),
        (ranks((0, 1.0), (2, 0.5)), "`results` are not of every document, each once: [0, 2]"),
        (ranks((False, 1.0), (True, 0.5)), "`results` are not of every document, each once"),
        (ranks((0, 0.5), (1, 1.0)), "the best does not come first"),
        (ranks((0, None), (1, 1.0)), "relevance_score: holds numbers that are not finite"),
    ],
)
def test_wrong_ranks_are_told(body: bytes, reason: str) -> None:
    with pytest.raises(BadReply) as caught:
        checks.read_ranks(body, 2)
    assert str(caught.value).startswith(reason)


def attention(weights: Any, num_tokens: int = 2, **fields: object) -> dict[str, Any]:
    layer = {"layer": 5, "shape": list(np.shape(weights)), "weights": weights} | fields
    return {"num_tokens": num_tokens, "attention": [layer]}


def test_attention_is_read_layer_by_layer() -> None:
    weights = [[[0.5, 0.5], [0.0, 1.0]]]
    (layer,) = checks.read_attention(attention(weights))
    assert np.array_equal(layer, weights)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"num_tokens": 2}, "an item has no attention"),
        ({"num_tokens": 2, "attention": []}, "an item has no attention"),
        (attention([[[0.5, 0.5]]]), r"attention does not fit the tokens: \(1, 1, 2\) for 2 tokens"),
        (attention([[0.5, 0.5], [0.5, 0.5]]), "attention does not fit the tokens"),
        (attention([[[0.5, 0.5], [0.5, 0.5]]], shape=[12, 2, 2]), "attention is not of the shape that it declares"),
        (attention([[[0.5, 0.5], [0.5, 0.5]]], num_tokens=3), "attention does not fit the tokens"),
        (attention([[[0.5, 0.5], [0.5, 0.49]]]), "rows of attention are not probabilities: a sum is off by 0.01"),
        (attention([[[1.5, -0.5], [0.5, 0.5]]]), "rows of attention are not probabilities"),
        (attention([[[0.5, 0.5], [0.5, float("nan")]]]), "attention: holds numbers that are not finite"),
    ],
)
def test_wrong_attention_is_told(item: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadReply, match=reason):
        checks.read_attention(item)
