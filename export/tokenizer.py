"""tokenizer.json as the bundle holds it: the source's bytes, unless Hugging Face's loaders would not tokenize by them.

Two settings outside the file change what it does, and the service reads nothing but the file: `tokenizer_config.json`
overrides the text normalisation of a BERT tokenizer, and sentence-transformers' `do_lower_case` lower-cases first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from export.source import SourceDirectory
from service.bundle import TOKENIZER

_BERT_CLASSES = ("BertTokenizer", "BertTokenizerFast")
# key of tokenizer_config.json → key of the normalizer, and the value that an absent key means
_BERT_OVERRIDES: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
    "strip_accents": ("strip_accents", None),
}


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """content: the bytes to write. changes: what differs from the source; empty when these are the source's bytes.

    num_ids: one more than the highest id that it can give.
    """

    content: bytes
    num_ids: int
    changes: tuple[str, ...] = ()


def read_tokenizer(source: SourceDirectory, folder: str) -> TokenizerFile | None:
    """The tokenizer of a model folder; None and a fault when it is missing or broken."""
    name = f"{folder}{TOKENIZER}"
    document = source.read_object(name, is_required=True)
    content = source.read(name, is_required=False) if document else None
    if content is None:
        return None
    changes = _apply_bert_overrides(source, folder, document) + _apply_lower_casing(source, folder, document)
    if changes:
        content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        vocab = Tokenizer.from_buffer(content).get_vocab(with_added_tokens=True)
    except Exception as error:  # the tokenizers library raises plain Exception
        source.faults.append(f"{name}: the tokenizers library cannot read it: {error}")
        return None
    return TokenizerFile(content, max(vocab.values(), default=-1) + 1, tuple(changes))


def _apply_bert_overrides(source: SourceDirectory, folder: str, document: dict[str, Any]) -> list[str]:
    config = source.read_object(f"{folder}tokenizer_config.json")
    normalizer = document.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return []
    if config.get("tokenizer_class", _BERT_CLASSES[0]) not in _BERT_CLASSES:
        return []
    changes = []
    for key, (ours, default) in _BERT_OVERRIDES.items():
        value = config.get(key, default)
        if normalizer.get(ours) != value:
            changes.append(f"{TOKENIZER}: normalizer.{ours} is {json.dumps(value)} (tokenizer_config.json: {key})")
            normalizer[ours] = value
    return changes


def _apply_lower_casing(source: SourceDirectory, folder: str, document: dict[str, Any]) -> list[str]:
    file = f"{folder}sentence_bert_config.json"
    if not source.read_object(file).get("do_lower_case"):
        return []
    normalizer = document.get("normalizer")
    steps: Sequence[Any] = [normalizer] if normalizer else []
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence":
        steps = normalizer["normalizers"]
    if any(step["type"] == "Lowercase" for step in steps):
        return []
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    return [f"{TOKENIZER}: a Lowercase step was put first ({file}: do_lower_case)"]
