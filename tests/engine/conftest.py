"""The tokenizer that most tests of the text stages look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.tokenizer import TextTokenizer
from tests.fixtures.texts import make


@pytest.fixture(scope="module")
def bert(tiny_models: Path) -> Path:
    """A random BERT directory with a small WordPiece vocabulary."""
    return tiny_models / "bert_mean"


@pytest.fixture(scope="module")
def tiny(bert: Path) -> TextTokenizer:
    """Its tokenizer, as the service loads it."""
    return make(bert)
