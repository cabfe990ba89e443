"""How the faults of a declaration are told."""

from __future__ import annotations

import difflib
from typing import Any

import orjson


def describe(where: str, fault: Any, known: tuple[str, ...]) -> str:
    """A fault that pydantic found in one table. where: the table; known: its keys"""
    key = str(fault["loc"][0]) if fault["loc"] else ""
    place, got = f"{where}.{key}" if key else where, told(fault["input"])
    match fault["type"]:
        case "extra_forbidden":
            return f"{place}: no such key{nearest(key, known)}"
        case "missing":
            return f"{place}: is needed"
        case "literal_error":
            return f"{place}: {fault['ctx']['expected']} needed, got {got}"
        case _ if key == "axes":
            return f"{place}: a list of words and numbers is needed, got {got}"
        case _:
            return f"{place}: {fault['msg'].removeprefix('Input should be ')} is needed, got {got}"


def nearest(name: str, known: tuple[str, ...]) -> str:
    """What may have been meant by a name that is not known, or all that are: the end of a message."""
    near = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {near[0]}?" if near else f": {', '.join(known)} are known"


def either(words: tuple[str, ...]) -> str:
    """a, b or c"""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def told(value: Any) -> str:
    """A value as JSON, of bounded length."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"
