"""The `input` of every dialect → the engine's inputs: texts, pairs, token ids.

`[1, 2, 3]` is one sequence of ids, `["a", "b"]` are two texts, `[["a", "b"]]` is one pair.
"""

from __future__ import annotations

from typing import Any

from service.api.body import describe
from service.engine.engine import Engine
from service.engine.request import Input, Text, TokenIds
from service.errors import RequestError


def parse_inputs(value: Any, engine: Engine, *, allow_pairs: bool, param: str = "input") -> list[Input]:
    """Checked inputs, in order. Raises RequestError naming the item at fault."""
    if isinstance(value, str):
        return [Text(value)]
    if not isinstance(value, list):
        raise RequestError(f"{param}: a string or a list is expected, got {describe(value)}", param=param)
    if not value:
        raise RequestError(f"{param}: at least 1 item is expected, got an empty list", param=param)
    if is_single(value):
        return [_ids(value, engine, param, param)]
    max_items = engine.settings.max_items
    if len(value) > max_items:
        raise RequestError(f"{param}: {max_items} items allowed, got {len(value)}", param=param, code="too_many_items")
    return [_item(item, f"{param}[{index}]", engine, allow_pairs) for index, item in enumerate(value)]


def is_single(value: Any) -> bool:
    """True for one text or one list of token ids, which stand for themselves; False for a list of inputs."""
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and isinstance(value[0], int | float))


def _item(value: Any, name: str, engine: Engine, allow_pairs: bool) -> Input:
    if isinstance(value, str):
        return Text(value)
    if not isinstance(value, list):
        raise RequestError(f"{name}: a string or a list of token ids is expected, got {describe(value)}", param=name)
    if value and isinstance(value[0], str):
        return _pair(value, name, allow_pairs)
    return _ids(value, engine, name, name)


def _pair(value: list[Any], name: str, allow_pairs: bool) -> Text:
    if not allow_pairs:
        raise RequestError(f"{name}: pairs of texts are taken by /v1/encode and /v1/classify", param=name)
    if len(value) != 2 or not isinstance(value[1], str):
        raise RequestError(f"{name}: a pair is 2 strings, got {describe(value)}", param=name)
    return Text(value[0], pair=value[1])


def _ids(value: list[Any], engine: Engine, name: str, param: str) -> TokenIds:
    # A bool is an int to Python, so the exact type is asked for, in C for all at once. The tokenizer checks the range.
    if not set(map(type, value)) <= {int}:
        index, bad = next((index, item) for index, item in enumerate(value) if type(item) is not int)
        last = engine.texts.manifest.text.vocab_size - 1
        raise RequestError(
            f"{name}: token ids are integers 0…{last}, got {describe(bad)} at index {index}", param=param
        )
    return TokenIds(tuple(value))
