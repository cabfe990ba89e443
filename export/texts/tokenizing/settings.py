"""What `transformers` reads beside the vocabulary: the tokenizer's class, its settings, and tokens to add.

Follows `AutoTokenizer` of transformers 5.24, whose order of files and defaults decides. Knows nothing of the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

from export.checkpoint import is_index
from export.texts.read.source import SourceDirectory
from export.texts.tokenizing.classes import CONFIG, TokenizerClass, choose_class
from export.texts.tokenizing.special import (
    EXTRA,
    NAMED,
    ListedToken,
    SpecialTokens,
    merge_map,
    read_special,
    read_token,
)

_SPECIAL_MAP = "special_tokens_map.json"
_ADDED = "added_tokens.json"
INPUTS = "model_input_names"
_TYPES = "token_type_ids"
# Arguments of a class that no saved tokenizer has, and that would change what it builds.
_UNSUPPORTED = ("init_inputs", "vocab", "merges", "tokenizer_object", "_spm_precompiled_charsmap", "post_processor")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What the files beside the vocabulary say.

    file: tokenizer_config.json by its path. keys: what is set there. options: what the class reads, with its values.
    listed: tokens by id, instead of those that tokenizer.json lists; None = nothing takes their place.
    added: tokens by id beside those that tokenizer.json lists. special: what must be among the tokens in the end.
    gives_types: the model gets token types.
    """

    file: str
    keys: Set[str]
    kind: TokenizerClass
    options: Mapping[str, Any]
    listed: Mapping[int, ListedToken] | None
    added: Mapping[int, ListedToken]
    special: SpecialTokens
    gives_types: bool

    def file_of(self, key: str) -> str:
        """The file that names the special token of that key, or could."""
        listed = self.special.named.get(key)
        return self.file if listed is None or listed.file is None else listed.file

    def name_of(self, key: str) -> str | None:
        """The special token of that key, as text; None where it is null."""
        if key in self.special.named:
            listed = self.special.named[key]
            return None if listed is None else listed.content
        return self.kind.named.get(key)

    def tokens_to_add(self, own: Mapping[int, ListedToken], pieces: Sequence[AddedToken] = ()) -> list[ListedToken]:
        """What transformers adds to its tokenizer, in order.

        own: what tokenizer.json lists. pieces: control and user-defined pieces of a sentencepiece model.
        """
        by_id = {**self.added, **own} if self.listed is None else self.listed
        found = [listed for _, listed in sorted(by_id.items())]
        present = {listed.content for listed in (*found, *(() if self.kind.parts else own.values()))}
        named = [*self._named({listed.content: listed.token for listed in by_id.values()})]
        for listed in (*named, *self._extra(pieces)):
            if listed.content not in present and listed.token not in [known.token for known in found]:
                found.append(listed)
        contents = {listed.content for listed in named}
        return [_as_added(listed, is_named=listed.content in contents) for listed in found]

    def _named(self, by_content: Mapping[str, AddedToken | str]) -> Iterator[ListedToken]:
        for key in NAMED:
            listed, content = self.special.named.get(key), self.name_of(key)
            if content is None:
                continue
            token = content if listed is None else by_content.get(content, listed.token)
            if isinstance(token, str):
                token = self.kind.as_token(key, token)
            yield ListedToken(token, None if listed is None else listed.file, key)
        yield from self.special.more

    def _extra(self, pieces: Sequence[AddedToken]) -> Sequence[ListedToken]:
        if self.special.extra is not None:
            return self.special.extra
        if pieces:
            return [ListedToken(piece, None, EXTRA) for piece in pieces]
        if self.special.additional is not None:
            return self.special.additional
        return [ListedToken(content, None, EXTRA) for content in self.kind.extra]


def _as_added(listed: ListedToken, *, is_named: bool) -> ListedToken:
    """A text is a special token, and so is whatever has a name."""
    if isinstance(listed.token, str):
        return ListedToken(AddedToken(listed.token, special=True), listed.file, listed.key)
    if is_named and not listed.token.special:
        listed.token.special = True
    return listed


def read_settings(source: SourceDirectory, folder: str) -> TokenizerSettings | None:
    """Merge the files as transformers does. None and faults when a class, key or token is not supported."""
    num_faults = len(source.faults)
    file = f"{folder}{CONFIG}"
    config = source.read_object(file)
    kind = choose_class(source, folder, config)
    _refuse_unsupported(source, file, config)
    listed = _read_listed(source, file, config)
    special = read_special(source, file, config)
    added = {}
    if listed is None:
        map_file = f"{folder}{_SPECIAL_MAP}"
        merge_map(source, map_file, special)
        added = _read_added(source, f"{folder}{_ADDED}", special.flagged(map_file))
    inputs = config.get(INPUTS)
    if inputs is not None and not (isinstance(inputs, list) and all(isinstance(name, str) for name in inputs)):
        source.refuse(file, INPUTS, inputs, "a list of names is needed")
    options = _read_options(source, file, config, kind)
    if kind is None or len(source.faults) > num_faults:
        return None
    gives_types = kind.gives_types if inputs is None else _TYPES in inputs
    return TokenizerSettings(file, config.keys(), kind, options, listed, added, special, gives_types)


def _refuse_unsupported(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> None:
    code = config.get("auto_map")
    if code is not None and not (isinstance(code, dict) and code.get("AutoTokenizer") is None):
        source.refuse(file, "auto_map", code, "a tokenizer without code of its own is needed")
    if config.get("split_special_tokens"):
        value = config["split_special_tokens"]
        expected = "false is needed: whether a text may hold special tokens is a setting of the server"
        source.refuse(file, "split_special_tokens", value, expected)
    versions = config.get("fast_tokenizer_files")
    if versions not in (None, [], ["tokenizer.json"]):
        expected = "tokenizer.json alone is needed: transformers would choose another file by its version"
        source.refuse(file, "fast_tokenizer_files", versions, expected)
    for key in _UNSUPPORTED:
        if config.get(key):
            source.refuse(file, key, config[key], "a tokenizer that is built from its files alone is needed")


def _read_options(
    source: SourceDirectory, file: str, config: Mapping[str, Any], kind: TokenizerClass | None
) -> dict[str, Any]:
    options = {}
    for key, (default, allowed) in kind.options.items() if kind else ():
        options[key] = config.get(key, default)
        if not any(options[key] is one for one in allowed):
            names = ["true" if one else "null" if one is None else "false" for one in allowed]
            source.refuse(file, key, options[key], f"{' or '.join(names)} is needed")
    return options


def _read_listed(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> dict[int, ListedToken] | None:
    key = "added_tokens_decoder"
    if key not in config:
        return None
    entries = config[key]
    listed = {}
    for index, entry in entries.items() if isinstance(entries, dict) else ():
        token = read_token(entry) if isinstance(entry, dict) else None
        if token is None or not is_index(index):
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
        token = AddedToken(content, single_word=False, normalized=not is_special, special=is_special)
        added[index] = ListedToken(token, file, content)
    return added
