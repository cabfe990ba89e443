"""Markers: prompts that a model was trained with as one token each, such as `[unused0]` or `[Q] `.

As text a tokenizer would take them apart. Like sentence-transformers, what its vocabulary has becomes a special token
of it, which is found in a text as it is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer

from export.texts.read.tokenizer import TokenizerFile
from service.manifest import TOKENIZER

_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def with_markers(file: TokenizerFile, markers: Sequence[str]) -> TokenizerFile:
    """The same tokenizer with these prompts as tokens, whole or their first word, as far as its vocabulary has them."""
    tokenizer = Tokenizer.from_buffer(file.content)
    document = json.loads(file.content)
    changes = []
    for marker in markers:
        known = ((text, tokenizer.token_to_id(text)) for text in _candidates(marker))
        token, index = next(((text, index) for text, index in known if index is not None), ("", None))
        if index is None or tokenizer.encode(token, add_special_tokens=False).tokens == [token]:
            continue
        _register(document, token, index)
        changes.append(f"{TOKENIZER}: {json.dumps(token)} is a special token: the marker of a prompt")
    if not changes:
        return file
    content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return replace(file, content=content, changes=(*file.changes, *dict.fromkeys(changes)))


def _candidates(marker: str) -> list[str]:
    words = marker.split(None, 1)
    return [marker, words[0]] if words else []


def _register(document: dict[str, Any], token: str, index: int) -> None:
    listed = [entry for entry in document.get("added_tokens") or [] if entry["id"] != index]
    document["added_tokens"] = sorted(
        [*listed, {"id": index, "content": token} | _FLAGS], key=lambda entry: entry["id"]
    )
