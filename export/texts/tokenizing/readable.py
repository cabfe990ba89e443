"""Which part of a tokenizer.json the tokenizers library cannot read: it says so of the whole file alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

# A file of nothing but what every one needs.
_LEAST: Mapping[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}
# What a sequence of steps lies in.
_STEPS = ("normalizers", "pretokenizers", "processors", "decoders")


def find_unknown(document: Any) -> tuple[str, Any] | None:
    """The key and value of the first part, or step of one, that cannot be read by itself; None where every one can."""
    if not isinstance(document, dict):
        return None
    for part in _LEAST:
        if part in document and not _is_readable(part, document[part]):
            return _innermost(part, part, document[part])
    return None


def _innermost(part: str, key: str, value: Any) -> tuple[str, Any]:
    for name in _STEPS if isinstance(value, dict) and value.get("type") == "Sequence" else ():
        for index, step in enumerate(value[name] if isinstance(value.get(name), list) else ()):
            if not _is_readable(part, step):
                return _innermost(part, f"{key}.{name}[{index}]", step)
    return key, value


def _is_readable(part: str, value: Any) -> bool:
    try:
        Tokenizer.from_str(json.dumps({**_LEAST, part: value}))
    except Exception:  # the tokenizers library raises plain Exception
        return False
    return True
