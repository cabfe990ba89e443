"""Entities: neighbouring tokens whose labels say that they belong together, as spans of the text as sent.

Tokens are put together as `transformers`' pipeline for token classification does, with two differences: what a word is
comes from the tokenizer, and BILOU and BIOES labels are read as what they mean. Arrays in, and a Python object for each
entity only: most tokens are part of none. Knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.engine.truncation import ABSENT, SPECIAL
from service.runners.base import Array

Aggregation = Literal["none", "simple", "first", "average", "max"]
OUTSIDE = "O"
_MARKED = re.compile("[BILEUS]-.")

# `{"label":"","score":0.99999994,"start":1000,"end":1010,"text":"somewhere","tokens":[100,102]},`, its label aside.
BYTES_PER_ENTITY = 96


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity. start, end: code points of the text as sent, None where token ids were sent; `text` lies between.

    tokens: the first of them and the one behind the last, as the item counts its tokens.
    sequence: 0 = the text, 1 = its pair; None where there is no pair.
    """

    label: str
    score: float
    start: int | None
    end: int | None
    text: str | None
    tokens: tuple[int, int]
    sequence: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tags:
    """What the labels of a head mean, by their index.

    names: of entities, without marks. kinds: a number for each name; starts, ends: whether an entity of several tokens
    must begin or end with this one.
    """

    labels: tuple[str, ...]
    names: tuple[str, ...]
    kinds: Array
    starts: Array
    ends: Array


@dataclass(frozen=True, slots=True, eq=False)
class TokenPlaces:
    """Where the tokens of one item come from, and its texts: one, or two of a pair; none where token ids were sent.

    offsets, sequences: as of an encoding. words: `[seq]` int64, the number of the word of its text that a token is of.
    """

    offsets: Array
    sequences: Array
    words: Array
    texts: tuple[str, ...]


def is_of_words(aggregation: Aggregation | None) -> bool:
    """Whether the tokens of each word must agree."""
    return aggregation in _OF_WORDS


def read_tags(labels: Sequence[str]) -> Tags:
    """Take labels of any scheme apart: IOB2 (B-, I-), BILOU, BIOES, or plain names.

    L, E, U and S are marks only where every label has one and some begin: `S-Bahn` beside plain names is a name.
    """
    inside = [label for label in labels if label != OUTSIDE]
    has_marks = any(label.startswith("B-") for label in inside) and all(_MARKED.match(label) for label in inside)
    marks, names = [], []
    for label in labels:
        is_marked = label.startswith(("B-", "I-")) or (has_marks and label != OUTSIDE)
        marks.append(label[0] if is_marked else "I")
        names.append(label[2:] if is_marked else label)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return Tags(
        labels=tuple(labels),
        names=tuple(names),
        kinds=np.array([numbers[name] for name in names]),
        starts=np.array([mark in "BUS" for mark in marks]),
        ends=np.array([mark in "LEUS" for mark in marks]),
    )


def find_entities(scores: Array, tags: Tags, places: TokenPlaces, aggregation: Aggregation) -> tuple[Entity, ...]:
    """The entities of one item, in the order of their tokens.

    scores: `[seq, labels]` float32.
    aggregation: `none` = each token alone, under its own label; `simple` = neighbours of one name; `first`, `average`,
    `max` = the same, once the tokens of each word agree: on the label of the first, of all together, or of the surest.
    """
    real = _real_tokens(places)
    if not len(real):
        return ()
    is_by_word = is_of_words(aggregation)
    units = _runs(places.words[real], places.sequences[real]) if is_by_word else np.arange(len(real))
    unit_scores = _OF_WORDS[aggregation](scores[real], units) if is_by_word else scores[real]
    labels = unit_scores.argmax(axis=-1)  # [units]
    best = np.take_along_axis(unit_scores, labels[:, None], axis=-1)[:, 0].astype(np.float64)  # [units]
    groups = np.arange(len(units)) if aggregation == "none" else _groups(labels, tags, places.sequences[real[units]])
    means = np.add.reduceat(best, groups) / np.diff(groups, append=len(units))
    names = tags.labels if aggregation == "none" else tags.names
    firsts, lasts = units[groups], np.append(units[groups[1:]], len(real)) - 1
    return tuple(
        _entity(names[label], score, (int(real[first]), int(real[last])), places)
        for label, score, first, last in zip(labels[groups].tolist(), means.tolist(), firsts, lasts, strict=True)
        if tags.names[label] != OUTSIDE
    )


def _real_tokens(places: TokenPlaces) -> Array:
    """Indexes of the tokens that may be of an entity: no special ones, and none of a prompt. -> [n] int64"""
    is_real = places.sequences != SPECIAL
    if places.texts:
        is_real &= places.offsets[:, 0] != ABSENT
    return np.flatnonzero(is_real)


def _runs(*columns: Array) -> Array:
    """Where a run of equal values begins. columns: [n] each -> [runs] int64"""
    is_new = np.ones(len(columns[0]), dtype=bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.flatnonzero(is_new)


def _groups(labels: Array, tags: Tags, sequences: Array) -> Array:
    """Where an entity begins, or what lies between two. labels, sequences: [units] -> [groups] int64"""
    is_new = tags.starts[labels]
    is_new[1:] |= tags.ends[labels[:-1]]
    is_new[_runs(tags.kinds[labels], sequences)] = True
    return np.flatnonzero(is_new)


def _of_surest(scores: Array, words: Array) -> Array:
    """The scores of the token of each word that is surest of its label, the first of such. -> [words, labels]"""
    best = scores.max(axis=-1)
    word_of = np.repeat(np.arange(len(words)), np.diff(words, append=len(scores)))
    places = np.where(best == np.maximum.reduceat(best, words)[word_of], np.arange(len(scores)), len(scores))
    found: Array = scores[np.minimum.reduceat(places, words)]
    return found


def _of_all(scores: Array, words: Array) -> Array:
    """The mean scores of each word. -> [words, labels]"""
    total: Array = np.add.reduceat(scores.astype(np.float64), words, axis=0)
    return total / np.diff(words, append=len(scores))[:, None]


_OF_WORDS: Mapping[Aggregation, Callable[[Array, Array], Array]] = {
    "first": lambda scores, words: scores[words],
    "average": _of_all,
    "max": _of_surest,
}


def _entity(label: str, score: float, tokens: tuple[int, int], places: TokenPlaces) -> Entity:
    first, last = tokens
    sequence = int(places.sequences[first])
    start = end = text = None
    if places.texts:
        whole = places.texts[sequence]
        start, end = int(places.offsets[first, 0]), int(places.offsets[last, 1])
        # Some tokenizers count the space before a word to it.
        text = whole[start:end].strip()
        start += len(whole[start:end]) - len(whole[start:end].lstrip())
        end = start + len(text)
    return Entity(
        label, score, start, end, text, (first, last + 1), sequence=sequence if len(places.texts) > 1 else None
    )
