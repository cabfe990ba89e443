"""Texts are of the lengths that they are said to be of, and the same every time."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from bench.texts import make_texts, open_tokenizer


@pytest.fixture
def tokenizer_file(minilm_dir: Path) -> Path:
    return minilm_dir / "tokenizer.json"


@pytest.mark.parametrize(
    ("kind", "shortest", "longest", "average"),
    [("passage", 100, 200, 150), ("short", 8, 14, 11), ("mixed", 5, 256, 52)],
)
def test_lengths(tokenizer_file: Path, kind: str, shortest: int, longest: int, average: float) -> None:
    texts = make_texts(kind, 400, tokenizer_file)
    lengths = [len(encoding.ids) for encoding in open_tokenizer(tokenizer_file).encode_batch(texts)]
    assert min(lengths) >= shortest
    assert max(lengths) <= longest
    assert mean(lengths) == pytest.approx(average, rel=0.15)


def test_a_seed_gives_its_own_texts(tokenizer_file: Path) -> None:
    texts = make_texts("short", 20, tokenizer_file, seed=1)
    assert texts == make_texts("short", 20, tokenizer_file, seed=1)
    assert texts != make_texts("short", 20, tokenizer_file, seed=2)
    assert len(set(texts)) > 15
