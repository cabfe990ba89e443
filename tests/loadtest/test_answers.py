"""Known answers find what only they can find: another text's vector, and one that is not quite right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.answers import KnownAnswers, check_distinct, compare_attention, compare_vectors
from loadtest.checks import Array
from loadtest.errors import BadReply

NUM_TEXTS, DIM = 6, 8


def known(scale: float = 1.0) -> KnownAnswers:
    vectors = np.random.default_rng(0).standard_normal((NUM_TEXTS, DIM))
    vectors *= scale / np.linalg.norm(vectors, axis=1, keepdims=True)
    return KnownAnswers(tuple("abcdef"), vectors)


ROWS = st.permutations(range(NUM_TEXTS)).flatmap(lambda rows: st.integers(2, NUM_TEXTS).map(lambda size: rows[:size]))


@given(ROWS, st.sampled_from([1.0, 30.0]))
def test_right_vectors_pass_whatever_their_norm(rows: list[int], scale: float) -> None:
    answers = known(scale)
    compare_vectors(answers.vectors[rows] + 0.9e-5 * scale, rows, answers, max_delta=1e-5)


@given(ROWS, st.data())
def test_any_exchange_is_found(rows: list[int], data: st.DataObject) -> None:
    answers = known()
    moved = data.draw(st.permutations(rows).filter(lambda order: order != rows))
    with pytest.raises(BadReply, match="a vector is that of another text: at position"):
        compare_vectors(answers.vectors[moved], rows, answers, max_delta=1e-5)


def test_the_place_that_a_vector_came_from_is_told() -> None:
    answers = known()
    with pytest.raises(BadReply, match="at position 0, it is that of position 1"):
        compare_vectors(answers.vectors[[3, 2]], [2, 3], answers, max_delta=1e-5)
    with pytest.raises(BadReply, match="at position 0, it is that of a text that is not in this request"):
        compare_vectors(answers.vectors[[4]], [2], answers, max_delta=1e-5)


def test_a_vector_that_is_nearly_right_is_told_with_its_distance() -> None:
    answers = known()
    vectors = answers.vectors[[0]].copy()
    vectors[0, 3] += 1e-3
    with pytest.raises(BadReply, match=r"differs from its known answer: at position 0, max \|Δ\| 0.001 where 1e-05"):
        compare_vectors(vectors, [0], answers, max_delta=1e-5)
    compare_vectors(vectors, [0], answers, max_delta=1e-2)


def test_answers_that_do_not_tell_texts_apart_are_refused() -> None:
    check_distinct(known(), 1e-5)
    same = known()
    same.vectors[4] = same.vectors[1] + 5e-5
    with pytest.raises(BadReply, match="different texts have the same vector"):
        check_distinct(same, 1e-5)


def test_norms_are_known() -> None:
    assert known().is_unit
    assert not known(1.01).is_unit
    assert known().dim == DIM


def test_attention_is_compared_by_value_and_shape() -> None:
    weights: Array = np.full((1, 3, 3), 1 / 3)
    answers = replace(known(), attention=([weights + 1], [weights]))
    compare_attention([weights + 0.9e-4], 1, answers)
    with pytest.raises(BadReply, match=r"attention differs from its known answer: max \|Δ\| 0.0002"):
        compare_attention([weights + 2e-4], 1, answers)
    with pytest.raises(BadReply, match="another shape"):
        compare_attention([weights, weights], 1, answers)
    compare_attention([weights], 1, known())
