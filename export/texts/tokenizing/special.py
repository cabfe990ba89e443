"""Special tokens as the files beside the vocabulary name them, merged in the order of transformers 5.24."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken

from export.texts.read.source import SourceDirectory

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = "extra_special_tokens"
_ADDITIONAL = "additional_special_tokens"
_SPECIFIC = "model_specific_special_tokens"
_LISTS = (EXTRA, _ADDITIONAL)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token that transformers adds, and the file and key that name it; without a file the class does by itself.

    token: a text where what the tokenizers library takes for a special token applies.
    """

    token: AddedToken | str
    file: str | None
    key: str

    @property
    def content(self) -> str:
        """The token itself."""
        return str(self.token)


@dataclass(slots=True)
class SpecialTokens:
    """Special tokens by what names them.

    named: the seven that every class has, by key, None where a file says null.
    found, given: by a key that a file made up; those given as a plain text or in an object come before those found.
    extra: those without a key. additional: the same by an older key, before which a sentencepiece model's own come.
    """

    named: dict[str, ListedToken | None] = field(default_factory=dict)
    found: dict[str, ListedToken] = field(default_factory=dict)
    given: dict[str, ListedToken] = field(default_factory=dict)
    extra: list[ListedToken] | None = None
    additional: list[ListedToken] | None = None

    @property
    def more(self) -> list[ListedToken]:
        """The tokens by made-up keys, in order."""
        return [*(self.found | self.given).values()]

    def flagged(self, map_file: str) -> Set[str]:
        """What added_tokens.json takes for special: tokens that are given as texts, or in the map with flags."""
        listed = [one for one in (*self.named.values(), *(self.extra or ())) if one is not None]
        return {one.content for one in listed if isinstance(one.token, str) or one.file == map_file}


def read_special(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> SpecialTokens:
    """The tokens of tokenizer_config.json. Faults: what is no token."""
    found = SpecialTokens()
    for key in NAMED:
        if key in config:
            found.named[key] = _read_token(source, file, key, config[key])
    for key, value in config.items():
        if _is_other(key, value) and (listed := _read_token(source, file, key, value)) is not None:
            (found.given if isinstance(value, str) else found.found)[key] = listed
    values = dict(config)
    if _ADDITIONAL in values and not values.get(EXTRA):
        values[EXTRA] = values.pop(_ADDITIONAL)
    extra, specific = values.get(EXTRA), values.get(_SPECIFIC)
    if isinstance(extra, dict):
        found.given |= _read_keyed(source, file, extra)
    if not found.given and isinstance(specific, dict):
        found.given |= _read_keyed(source, file, specific)
    if EXTRA in values and not isinstance(extra, dict):
        found.extra = _read_list(source, file, EXTRA if config.get(EXTRA) else _ADDITIONAL, extra)
    return found


def merge_map(source: SourceDirectory, file: str, found: SpecialTokens) -> None:
    """Let the older special_tokens_map.json have its say. Faults: what is no token."""
    for key, value in source.read_object(file).items():
        if not (key in _LISTS or key.endswith("_token")) or isinstance(value, bool):
            source.refuse(file, key, value, "a special token is needed")
        elif key in NAMED:
            found.named[key] = _read_token(source, file, key, value, is_special=True)
        elif key == EXTRA and isinstance(value, dict):
            found.given |= _read_keyed(source, file, value)
        elif key == EXTRA:
            known = found.extra or []
            new = _read_list(source, file, key, value) or []
            found.extra = known + [listed for listed in new if listed.token not in [one.token for one in known]]
        elif key == _ADDITIONAL:
            found.additional = _read_list(source, file, key, value)
        elif (listed := _read_token(source, file, key, value, is_special=True)) is not None:
            found.found[key] = listed


def read_token(value: Any, *, is_special: bool = False) -> AddedToken | str | None:
    """A token as transformers writes it: a text, or an object with its flags; None when it is neither."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {flag: value[flag] for flag in _FLAGS if flag in value} | ({"special": True} if is_special else {})
    return AddedToken(value["content"], **flags) if all(isinstance(flag, bool) for flag in flags.values()) else None


def own_token(entry: Mapping[str, Any], file: str, key: str) -> ListedToken:
    """A token as tokenizer.json lists it. entry: content and flags, which the tokenizers library has read already."""
    return ListedToken(AddedToken(entry["content"], **{flag: entry[flag] for flag in _FLAGS}), file, key)


def _is_other(key: str, value: Any) -> bool:
    return key.endswith("_token") and key not in NAMED and value is not None and not isinstance(value, bool)


def _read_token(
    source: SourceDirectory, file: str, key: str, value: Any, *, is_special: bool = False
) -> ListedToken | None:
    token = read_token(value, is_special=is_special)
    if token is not None:
        return ListedToken(token, file, key)
    if value is not None:
        source.refuse(file, key, value, "a token is needed")
    return None


def _read_keyed(source: SourceDirectory, file: str, values: Mapping[str, Any]) -> dict[str, ListedToken]:
    found = {key: _read_token(source, file, key, value) for key, value in values.items()}
    return {key: listed for key, listed in found.items() if listed is not None}


def _read_list(source: SourceDirectory, file: str, key: str, values: Any) -> list[ListedToken] | None:
    if values is None:
        return []
    if not isinstance(values, list):
        source.refuse(file, key, values, "a list of tokens is needed")
        return None
    return [*_read_entries(source, file, key, values)]


def _read_entries(source: SourceDirectory, file: str, key: str, values: list[Any]) -> Iterator[ListedToken]:
    for value in values:
        token = read_token(value)
        if token is None:
            source.refuse(file, key, value, "a token is needed")
        else:
            yield ListedToken(token, file, key)
