"""Entities of token classes: as transformers' pipeline puts them together, and what it does not know."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast, TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy

from service.engine.entities import Aggregation, Entity, TokenPlaces, find_entities, read_tags
from service.engine.truncation import ABSENT, SPECIAL
from service.runners.base import Array
from tests.fixtures.fakes import fake_tokenizer

IOB2 = ("O", "B-PET", "I-PET", "B-PLACE", "I-PLACE")
BILOU = ("O", "B-PET", "I-PET", "L-PET", "U-PET", "U-PLACE")
BIOES = ("O", "B-PET", "I-PET", "E-PET", "S-PET")


@functools.cache
def pipeline(labels: tuple[str, ...]) -> Any:
    """The reference, over a model that is never asked."""
    build: Any = PreTrainedTokenizerFast
    tokenizer = build(tokenizer_object=fake_tokenizer(), unk_token="[UNK]")
    config = BertConfig(
        vocab_size=8, hidden_size=2, num_hidden_layers=0, num_attention_heads=1, intermediate_size=2,
        id2label=dict(enumerate(labels)),
    )  # fmt: skip
    build = TokenClassificationPipeline
    return build(model=BertForTokenClassification(config), tokenizer=tokenizer)


def places_of(text: str) -> TokenPlaces:
    found = fake_tokenizer().encode(text)
    sequences = [SPECIAL if number is None else number for number in found.sequence_ids]
    offsets = np.where(np.array(sequences)[:, None] == SPECIAL, ABSENT, np.array(found.offsets))
    words = [ABSENT if number is None else number for number in found.word_ids]
    return TokenPlaces(offsets, np.array(sequences), np.array(words), (text,))


def expected(text: str, scores: Array, labels: tuple[str, ...], aggregation: Aggregation) -> list[tuple[Any, ...]]:
    reference, found = pipeline(labels), fake_tokenizer().encode(text)
    strategy = AggregationStrategy(aggregation)
    pre_entities = reference.gather_pre_entities(
        text, np.array(found.ids), scores, found.offsets, np.array(found.special_tokens_mask), strategy
    )
    entities = reference.aggregate(pre_entities, strategy)
    name = "entity" if aggregation == "none" else "entity_group"
    return [(e[name], e["start"], e["end"], float(e["score"])) for e in entities if e[name] != "O"]


def one_hot(labels: Sequence[str], per_token: Sequence[str]) -> Array:
    """Scores that are sure of these labels."""
    return np.array([[0.9 if label == wanted else 0.1 for label in labels] for wanted in per_token], dtype=np.float32)


def spans(found: Sequence[Entity]) -> list[tuple[str, str | None]]:
    return [(entity.label, entity.text) for entity in found]


@settings(deadline=None, max_examples=100)
@given(
    words=st.lists(st.sampled_from(["cat", "dogs", "Riverbank", "a", "zq", "the", "b.c", "42", "!"]), max_size=8),
    seed=st.integers(0, 2**32 - 1),
    labels=st.sampled_from([IOB2, ("O", "PET", "PLACE"), ("LABEL_0", "LABEL_1")]),
    aggregation=st.sampled_from(["none", "simple", "first", "average", "max"]),
)
def test_they_are_those_of_transformers(
    words: list[str], seed: int, labels: tuple[str, ...], aggregation: Aggregation
) -> None:
    text = " ".join(words)
    places = places_of(text)
    logits = np.random.default_rng(seed).normal(size=(len(places.words), len(labels)), scale=3)
    scores = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    found = find_entities(scores, read_tags(labels), places, aggregation)
    wanted = expected(text, scores, labels, aggregation)
    assert [(e.label, e.start, e.end) for e in found] == [(label, start, end) for label, start, end, _ in wanted]
    np.testing.assert_allclose([e.score for e in found], [score for *_, score in wanted], atol=1e-6)
    for entity in found:
        assert entity.text == text[entity.start : entity.end]
        first, behind = entity.tokens
        assert places.offsets[first, 0] == entity.start
        assert places.offsets[behind - 1, 1] == entity.end


@pytest.mark.parametrize(
    ("labels", "per_token", "wanted"),
    [
        (BILOU, ["B-PET", "I-PET", "L-PET", "B-PET"], [("PET", "the cat dog"), ("PET", "river")]),
        (BILOU, ["U-PET", "U-PET", "O", "U-PLACE"], [("PET", "the"), ("PET", "cat"), ("PLACE", "river")]),
        (
            BILOU,
            ["L-PET", "I-PET", "U-PET", "I-PET"],
            [("PET", "the"), ("PET", "cat"), ("PET", "dog"), ("PET", "river")],
        ),
        (BIOES, ["B-PET", "E-PET", "S-PET", "O"], [("PET", "the cat"), ("PET", "dog")]),
        (IOB2, ["B-PET", "B-PET", "I-PET", "I-PLACE"], [("PET", "the"), ("PET", "cat dog"), ("PLACE", "river")]),
        (IOB2, ["I-PET", "I-PET", "O", "I-PET"], [("PET", "the cat"), ("PET", "river")]),
        (("O", "S-Bahn"), ["S-Bahn", "S-Bahn", "O", "S-Bahn"], [("S-Bahn", "the cat"), ("S-Bahn", "river")]),
        (IOB2, ["O", "O", "O", "O"], []),
    ],
)
def test_the_marks_of_labels_are_read_by_their_scheme(
    labels: tuple[str, ...], per_token: list[str], wanted: list[tuple[str, str]]
) -> None:
    scores = one_hot(labels, ["O", *per_token, "O"])
    found = find_entities(scores, read_tags(labels), places_of("the cat dog river"), "simple")
    assert spans(found) == wanted


def test_a_pair_has_entities_of_each_text_and_none_of_both() -> None:
    found = fake_tokenizer().encode("the cat", "dog river")
    sequences = np.array([SPECIAL if number is None else number for number in found.sequence_ids])
    places = TokenPlaces(np.array(found.offsets), sequences, np.arange(len(sequences)), ("the cat", "dog river"))
    scores = one_hot(IOB2, ["O", "O", "I-PET", "I-PET", "I-PET", "O", "O"])
    entities = find_entities(scores, read_tags(IOB2), places, "simple")
    assert [(entity.text, entity.sequence, entity.tokens) for entity in entities] == [
        ("cat", 0, (2, 3)),
        ("dog", 1, (4, 5)),
    ]


def test_tokens_of_a_prompt_are_left_out_and_token_ids_have_no_spans() -> None:
    places = places_of("the cat")
    places.offsets[1] = ABSENT  # `the` came from a prompt
    scores = one_hot(IOB2, ["O", "I-PET", "I-PET", "O"])
    assert spans(find_entities(scores, read_tags(IOB2), places, "simple")) == [("PET", "cat")]
    bare = TokenPlaces(np.full((4, 2), ABSENT), places.sequences, places.words, ())
    (entity,) = find_entities(scores, read_tags(IOB2), bare, "simple")
    assert (entity.start, entity.end, entity.text, entity.tokens) == (None, None, None, (1, 3))


def test_an_entity_begins_with_no_space() -> None:
    """As tokenizers cut that count the space before a word to it."""
    offsets = np.array([[0, 2], [2, 8], [8, 9]])
    places = TokenPlaces(offsets, np.zeros(3, dtype=int), np.arange(3), ("in Paris,",))
    (entity,) = find_entities(one_hot(IOB2, ["O", "B-PLACE", "O"]), read_tags(IOB2), places, "simple")
    assert (entity.start, entity.end, entity.text) == (3, 8, "Paris")


def test_there_may_be_no_token_at_all() -> None:
    assert find_entities(one_hot(IOB2, ["B-PET", "B-PET"]), read_tags(IOB2), places_of(""), "max") == ()
