"""Texts are real, seeded, different, of the lengths of their kind, and fit into the model's limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from bench.texts import open_tokenizer
from loadtest.corpus import read_corpus
from loadtest.errors import LoadTestError
from loadtest.texts import KINDS, make_texts, max_words
from tests.fixtures.command import ROOT


def lengths(name: str, longest: int = 400) -> list[int]:
    return [len(text.split()) for text in make_texts(KINDS[name], 600, longest=longest, seed=name)]


@pytest.mark.parametrize(("name", "shortest", "longest"), [("short", 5, 10), ("passage", 70, 100)])
def test_lengths(name: str, shortest: int, longest: int) -> None:
    found = lengths(name)
    assert (min(found), max(found)) == (shortest, longest)


@pytest.mark.parametrize("name", ["mixed", "list32", "attention"])
def test_mixed_lengths_have_a_heavy_tail(name: str) -> None:
    found = sorted(lengths(name))
    assert 16 <= median(found) <= 24
    assert found[-30] >= 60  # one in twenty is three times as long as the median, or longer
    assert found[0] >= 3
    assert max(lengths(name, longest=50)) == 50


def test_a_seed_gives_its_own_texts_and_all_are_different() -> None:
    texts = make_texts(KINDS["short"], 300, longest=100, seed="a")
    assert texts == make_texts(KINDS["short"], 300, longest=100, seed="a")
    assert texts != make_texts(KINDS["short"], 300, longest=100, seed="b")
    assert len(set(texts)) == 300


def test_too_few_texts_are_told() -> None:
    with pytest.raises(LoadTestError, match="there are no 20000 different texts of at most 1 words"):
        make_texts(KINDS["short"], 20_000, longest=1, seed="a")


def test_the_longest_texts_fit_into_the_models_limit(minilm_dir: Path) -> None:
    tokenizer = open_tokenizer(minilm_dir / "tokenizer.json")
    texts = make_texts(KINDS["passage"], 2000, longest=max_words(256), seed="a")
    assert 150 < max(len(encoding.ids) for encoding in tokenizer.encode_batch(texts)) <= 256


def test_an_unknown_limit_has_a_default() -> None:
    assert max_words(None) == 100
    assert max_words(512) > max_words(256)
    assert max_words(1) == 1


def test_the_corpus_is_the_same_where_locust_has_patched_the_process() -> None:
    code = (
        "{}from hashlib import md5; from loadtest.corpus import read_corpus; "
        "print(md5(read_corpus().encode()).hexdigest())"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", code.format(first)], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for first in ("", "import locust; ")
    ]
    assert digests[0] == digests[1]
    assert len(read_corpus()) > 200_000
