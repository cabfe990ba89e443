"""The model of a tokenizer.json: its class takes the vocabulary alone, so whatever else it says must be as usual."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import models, pre_tokenizers

from export.texts.tokenizing.agreement import TokenizerJson
from export.texts.tokenizing.classes import Parts

_WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
_BYTES = {"continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, ""), "ignore_merges": (False,)}
_RANDOM = "no dropout is needed: the ids of a text would be drawn by lot"


def check_model(file: TokenizerJson) -> None:
    """Faults: another algorithm than the class's, other settings than those that it uses."""
    model, parts = file.tokenizer.model, file.settings.kind.parts
    if isinstance(model, models.BPE) and model.dropout:
        file.source.refuse(file.name, "model.dropout", model.dropout, _RANDOM)
    if parts is None:
        return
    if (kind := type(model).__name__) != parts.algorithm:
        file.refuse("model.type", kind, parts.algorithm)
    elif isinstance(model, models.WordPiece):
        _check_words(file, model)
    elif isinstance(model, models.BPE):
        _check_bytes(file, model)
    else:
        _check_pieces(file, parts)


def _check_words(file: TokenizerJson, model: models.WordPiece) -> None:
    for key, expected in _WORD_PIECE.items():
        if (found := getattr(model, key)) != expected:
            file.refuse(f"model.{key}", found, json.dumps(expected))
    unknown = file.settings.name_of("unk_token")
    if unknown != model.unk_token:
        expected = f"the unk_token {json.dumps(unknown)} of {file.settings.file_of('unk_token')} is needed"
        file.source.refuse(file.name, "model.unk_token", model.unk_token, expected)


def _check_bytes(file: TokenizerJson, model: models.BPE) -> None:
    for key, allowed in _BYTES.items():
        if (found := getattr(model, key)) not in allowed:
            file.refuse(f"model.{key}", found, json.dumps(allowed[-1]))
    vocab = file.tokenizer.get_vocab(with_added_tokens=False)
    if all(char in vocab for char in pre_tokenizers.ByteLevel.alphabet()):
        return  # then no byte is unknown
    for key, usual in (("unk_token", None), ("byte_fallback", False)):
        if (found := getattr(model, key)) != usual:
            file.refuse(f"model.{key}", found, json.dumps(usual))


def _check_pieces(file: TokenizerJson, parts: Parts) -> None:
    model: dict[str, Any] = file.document["model"]
    assert parts.unigram is not None
    expected = parts.unigram.unk_id
    if expected is None:
        unknown = file.settings.name_of("unk_token")
        expected = next((index for index, (piece, _) in enumerate(model["vocab"]) if piece == unknown), 0)
    if (found := model.get("unk_id")) != expected:
        file.refuse("model.unk_id", found, str(expected))
    if model.get("byte_fallback"):
        file.refuse("model.byte_fallback", True, "false")
