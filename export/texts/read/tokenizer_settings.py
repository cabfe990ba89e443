"""What `transformers` reads beside tokenizer.json: the tokenizer's class, its settings, and tokens to add.

Follows `AutoTokenizer` of transformers 5 for encoders of the BERT family. Knows nothing of the file itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import AddedToken

from export.texts.read.source import SourceDirectory

CONFIG = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
MODEL_CONFIG = "config.json"

# A class of transformers → whether it builds its tokenizer around the file's vocabulary or takes the file as it is.
_KINDS: Mapping[str, Literal["bert", "plain"]] = {
    "BertTokenizer": "bert",
    "BertTokenizerFast": "bert",
    "DistilBertTokenizer": "bert",
    "DistilBertTokenizerFast": "bert",
    "ElectraTokenizer": "bert",
    "ElectraTokenizerFast": "bert",
    "PreTrainedTokenizerFast": "plain",
    "TokenizersBackend": "plain",
}
_DEFAULT_CLASS = "BertTokenizer"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT_NAMED = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token that transformers adds, and the file and key that name it."""

    token: AddedToken
    file: str
    key: str


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What the files beside tokenizer.json say.

    kind: `bert` builds everything around the file's vocabulary, `plain` takes the file as it is.
    values: settings by key; files: the file that each is from.
    listed: tokens by id, instead of those that tokenizer.json lists; None = nothing takes their place.
    added: tokens by id beside those that tokenizer.json lists. special: what must be among the tokens in the end.
    """

    kind: Literal["bert", "plain"]
    values: Mapping[str, Any]
    files: Mapping[str, str]
    listed: Mapping[int, ListedToken] | None
    added: Mapping[int, ListedToken]
    special: tuple[ListedToken, ...]

    def file(self, key: str) -> str:
        """The file that sets a key, or could."""
        return self.files.get(key, CONFIG)

    def name_of(self, key: str) -> str | None:
        """The special token of that key, as text; None where it is null."""
        token = _token(self.values.get(key, _BERT_NAMED.get(key)))
        return None if token is None else token.content

    def tokens_to_add(self, own: Mapping[int, ListedToken]) -> list[ListedToken]:
        """What transformers adds to its tokenizer, in order. own: what tokenizer.json lists."""
        by_id = {**self.added, **own} if self.listed is None else self.listed
        found = [listed for _, listed in sorted(by_id.items())]
        known = {listed.token.content for listed in (*found, *(own.values() if self.kind == "plain" else ()))}
        found += [listed for listed in self.special if listed.token.content not in known]
        named = {listed.token.content for listed in self.special if listed.key not in _EXTRA}
        for listed in found:
            listed.token.special = listed.token.special or listed.token.content in named
        return found


def read_settings(source: SourceDirectory, folder: str) -> TokenizerSettings | None:
    """Merge the files as transformers does. None and faults when a class, key or token is not supported."""
    num_faults = len(source.faults)
    file = f"{folder}{CONFIG}"
    config = source.read_object(file)
    kind = _read_kind(source, folder, config)
    _refuse_unsupported(source, file, config)
    values, files = dict(config), dict.fromkeys(config, file)
    listed = _read_listed(source, file, config)
    if listed is None:
        _merge_special_map(source, f"{folder}{SPECIAL_MAP}", values, files)
    special = tuple(_special_tokens(source, values, files, kind))
    added = {}
    if listed is None:
        flagged = {found.token.content for found in special if found.key in (*_NAMED, *_EXTRA)}
        added = _read_added(source, f"{folder}{ADDED}", flagged)
    if kind is None or len(source.faults) > num_faults:
        return None
    return TokenizerSettings(kind, values, files, listed, added, special)


def listed_token(entry: Mapping[str, Any], file: str, key: str) -> ListedToken:
    """A token as tokenizer.json lists it. entry: content and flags, which the tokenizers library has read already."""
    return ListedToken(AddedToken(entry["content"], **{flag: entry[flag] for flag in _FLAGS}), file, key)


def _read_kind(source: SourceDirectory, folder: str, config: Mapping[str, Any]) -> Literal["bert", "plain"] | None:
    file, found = f"{folder}{CONFIG}", config.get("tokenizer_class")
    if not found:
        file, found = f"{folder}{MODEL_CONFIG}", source.read_object(f"{folder}{MODEL_CONFIG}").get("tokenizer_class")
    found = found or _DEFAULT_CLASS
    if not isinstance(found, str) or found not in _KINDS:
        source.refuse(file, "tokenizer_class", found, f"one of {', '.join(_KINDS)} is needed")
        return None
    return _KINDS[found]


def _refuse_unsupported(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> None:
    code = config.get("auto_map")
    if code is not None and not (isinstance(code, dict) and code.get("AutoTokenizer") is None):
        source.refuse(file, "auto_map", code, "a tokenizer without code of its own is needed")
    if config.get("split_special_tokens"):
        value = config["split_special_tokens"]
        source.refuse(file, "split_special_tokens", value, "false is needed: the service finds special tokens in text")
    versions = config.get("fast_tokenizer_files")
    if versions not in (None, [], ["tokenizer.json"]):
        expected = "tokenizer.json alone is needed: transformers would choose another file by its version"
        source.refuse(file, "fast_tokenizer_files", versions, expected)


def _read_listed(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> dict[int, ListedToken] | None:
    key = "added_tokens_decoder"
    if key not in config:
        return None
    entries = config[key]
    listed = {}
    for index, entry in entries.items() if isinstance(entries, dict) else ():
        token = _token(entry) if isinstance(entry, dict) else None
        if token is None or not index.isdecimal():
            break
        listed[int(index)] = ListedToken(token, file, key)
    if not isinstance(entries, dict) or len(listed) != len(entries):
        source.refuse(file, key, entries, "an object from id to token (content, lstrip, …) is needed")
    return listed


def _read_added(source: SourceDirectory, file: str, special: Set[str]) -> dict[int, ListedToken]:
    added = {}
    for content, index in source.read_object(file).items():
        if type(index) is not int or index < 0:
            source.refuse(file, content, index, "the id of a token is needed")
            continue
        is_special = content in special
        added[index] = ListedToken(AddedToken(content, normalized=not is_special, special=is_special), file, content)
    return added


def _merge_special_map(source: SourceDirectory, file: str, values: dict[str, Any], files: dict[str, str]) -> None:
    for key, value in source.read_object(file).items():
        if not (key in _EXTRA or key.endswith("_token")) or isinstance(value, bool):
            source.refuse(file, key, value, "a special token is needed")
            continue
        if key == _EXTRA[0] and isinstance(value, list) and isinstance(values.get(key), list):
            value = values[key] + value
        values[key], files[key] = value, file


def _special_tokens(
    source: SourceDirectory, values: Mapping[str, Any], files: Mapping[str, str], kind: str | None
) -> Iterator[ListedToken]:
    """The special tokens in the order in which transformers adds them: the seven named ones, others, then lists."""
    defaults = _BERT_NAMED if kind == "bert" else {}
    others = [key for key in values if key.endswith("_token") and key not in _NAMED]
    found: list[tuple[str, Any]] = [(key, values.get(key, defaults.get(key))) for key in _NAMED]
    found += [(key, values[key]) for key in others if not isinstance(values[key], bool)]
    key = _EXTRA[0] if values.get(_EXTRA[0]) else _EXTRA[1]
    extra = values.get(key)
    if extra is not None and not isinstance(extra, list | dict):
        source.refuse(files[key], key, extra, "a list of tokens is needed")
        extra = None
    found += [(key, entry) for entry in (extra.values() if isinstance(extra, dict) else extra or ())]
    for key, value in found:
        token = _token(value)
        if token is not None:
            yield ListedToken(token, files.get(key, CONFIG), key)
        elif value is not None:
            source.refuse(files[key], key, value, "a token is needed")


def _token(value: Any) -> AddedToken | None:
    """A token as transformers writes it: a text, which is special, or an object with its flags."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {flag: value[flag] for flag in _FLAGS if flag in value}
    return AddedToken(value["content"], **flags) if all(isinstance(flag, bool) for flag in flags.values()) else None
