"""tokenizer.json as the bundle holds it: it must give the ids that Hugging Face's loaders give for the same directory.

Those do not go by the file alone. Most classes of `transformers` build their own normalizer, pre-tokenizer and template
around a vocabulary, which they take from tokenizer.json or from older files; every class adds tokens from other files;
sentence-transformers' `do_lower_case` lower-cases first. The service reads nothing but the bundle's tokenizer.json, so
all of that is written into it, as transformers 5.24 does it. `agreement` says what is refused instead.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

from export.texts.read.source import SourceDirectory
from export.texts.read.transformer import TOKENIZER_ARGUMENTS, settings_file, tokenizer_argument
from export.texts.tokenizing.agreement import TokenizerJson, compare_parts, compare_tokens, state
from export.texts.tokenizing.algorithm import check_model
from export.texts.tokenizing.build import build
from export.texts.tokenizing.readable import find_unknown
from export.texts.tokenizing.settings import INPUTS, TokenizerSettings, read_settings
from export.texts.tokenizing.special import own_token
from export.texts.tokenizing.token_types import without_types
from export.texts.tokenizing.vocabulary import Vocabulary, read_vocabulary
from service.manifest import TOKENIZER

# They would take the template's place.
_TEMPLATE_KEYS = {"add_bos_token", "add_eos_token"}
# In no vocabulary of use, and kept by every normalizer.
_RARE = "\U00013000"


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """content: the bytes to write. changes: what to tell of how they differ from the source's tokenizer.json, if any,
    and of how the service differs from them.

    num_ids: one more than the highest id that it can give. padding: the pad token's text, and its id; None where it has
    none.
    """

    content: bytes
    num_ids: int
    changes: tuple[str, ...] = ()
    padding: tuple[str, int] | None = None


def read_tokenizer(source: SourceDirectory, folder: str, num_token_types: int | None = None) -> TokenizerFile | None:
    """The tokenizer of a model folder; None and faults when it is missing, broken or not what transformers uses.

    num_token_types: of the model; None or 0 = it takes none.
    """
    num_faults = len(source.faults)
    settings = read_settings(source, folder)
    content = source.read(f"{folder}{TOKENIZER}", is_required=False)
    if len(source.faults) > num_faults or settings is None:
        return None
    found = _from_files(source, folder, settings) if content is None else _from_json(source, folder, settings, content)
    if found is None:
        return None
    document, changes = found
    template = document["post_processor"]
    changes += _apply_pipeline(source, folder, document)
    if num_token_types and not settings.gives_types:
        changes += _apply_types(document, settings)
    if len(source.faults) > num_faults:
        return None
    if changes or content is None or document["post_processor"] != template:
        content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        if _load(source, f"{folder}{TOKENIZER}, as it would be written", content) is None:
            return None
    changes += _truncation(source, settings.file)
    return TokenizerFile(content, _num_ids(document), tuple(changes), _padding(document, settings))


def _padding(document: Mapping[str, Any], settings: TokenizerSettings) -> tuple[str, int] | None:
    name, vocab = settings.name_of("pad_token"), document["model"]["vocab"]
    pieces = ((piece[0], index) for index, piece in enumerate(vocab)) if isinstance(vocab, list) else vocab.items()
    added = ((entry["content"], entry["id"]) for entry in document.get("added_tokens") or ())
    index = next((index for content, index in chain(added, pieces) if content == name), None)
    return None if name is None or index is None else (name, index)


def _truncation(source: SourceDirectory, file: str) -> list[str]:
    """Which end is cut is the request's to say here."""
    side = source.read_object(file).get("truncation_side", "right")
    if side not in ("left", "right"):
        source.refuse(file, "truncation_side", side, "left or right is needed")
    told = f"{file}: truncation_side: the model's own tokenizer cuts texts at their start; a request says where here"
    return [f'{told} (`"truncate": "left"`; `true` cuts the end)'] if side == "left" else []


def from_document(source: SourceDirectory, folder: str, content: str, *, has_types: bool) -> TokenizerFile | None:
    """A tokenizer that transformers made itself; None and faults when it is not whole, or the pipeline does not fit.

    content: as tokenizer.json. has_types: the model gets token types.
    """
    num_faults, name = len(source.faults), f"{folder}{TOKENIZER}, as transformers makes it"
    document = json.loads(content)
    changes = _apply_pipeline(source, folder, document)
    if not has_types:
        document["post_processor"] = without_types(document["post_processor"])
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if _load(source, name, written) is None or len(source.faults) > num_faults:
        return None
    return TokenizerFile(written, _num_ids(document), tuple(changes))


def _num_ids(document: Mapping[str, Any]) -> int:
    vocab, added = document["model"]["vocab"], document.get("added_tokens") or ()
    ids: Iterable[int] = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
    return max(max(ids, default=0), max((entry["id"] for entry in added), default=0)) + 1


def _from_json(
    source: SourceDirectory, folder: str, settings: TokenizerSettings, content: bytes
) -> tuple[dict[str, Any], list[str]] | None:
    """The document, with all written into it that the class does otherwise, and what that is."""
    name, num_faults = f"{folder}{TOKENIZER}", len(source.faults)
    document = source.read_object(name, is_required=True)
    tokenizer = _load(source, name, content) if len(source.faults) == num_faults else None
    if tokenizer is None:
        return None
    for part in ("normalizer", "post_processor"):  # in full, where the file leaves out what is usual
        document[part] = state(getattr(tokenizer, part))
    file = TokenizerJson(source, name, settings, document, tokenizer)
    check_model(file)
    entries = document.get("added_tokens") or []
    own = {entry["id"]: own_token(entry, name, "added_tokens") for entry in entries}
    added = settings.tokens_to_add(own)
    if len(source.faults) > num_faults:
        return None
    if settings.kind.parts is None:
        theirs = Tokenizer.from_str(tokenizer.to_str())
        theirs.add_tokens([listed.token for listed in added])
    elif (built := build(source, settings, Vocabulary(tokenizer.model, _charsmap(document)), added)) is None:
        return None
    else:
        theirs = built
        compare_parts(file, theirs)
    compare_tokens(file, theirs, added)
    return (document, file.changes) if len(source.faults) == num_faults else None


def _charsmap(document: Mapping[str, Any]) -> bytes | None:
    """Where transformers looks for the character map of a sentencepiece model."""
    normalizer = document["normalizer"] or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    found = next((step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"), None)
    return None if found is None else b64decode(found)


def _from_files(
    source: SourceDirectory, folder: str, settings: TokenizerSettings
) -> tuple[dict[str, Any], list[str]] | None:
    """The document that the class builds from the files of its older form; nothing differs from anything."""
    num_faults = len(source.faults)
    parts = settings.kind.parts
    if parts is None or not any((source.path / folder / file).exists() for file in parts.files):
        source.read(f"{folder}{TOKENIZER}")
        if parts is not None:
            source.faults[-1] += f" ({' with '.join(parts.files)} would do as well)"
        return None
    for key in settings.keys & _TEMPLATE_KEYS:
        source.faults.append(f"{settings.file}: {key}: not supported without a tokenizer.json")
    vocabulary = read_vocabulary(source, folder, settings)
    if vocabulary is None:
        return None
    built = build(source, settings, vocabulary, settings.tokens_to_add({}, vocabulary.added))
    if built is None or not _is_whole(source, f"{folder}{parts.files[0]}", built) or len(source.faults) > num_faults:
        return None
    return json.loads(built.to_str()), []


def _load(source: SourceDirectory, name: str, content: bytes) -> Tokenizer | None:
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the tokenizers library raises plain Exception
        if (unknown := find_unknown(json.loads(content))) is None:
            source.faults.append(f"{name}: the tokenizers library cannot read it: {error}")
        else:
            source.refuse(name, *unknown, "the tokenizers library cannot read it: another is needed")
        return None
    return tokenizer if _is_whole(source, name, tokenizer) else None


def _is_whole(source: SourceDirectory, name: str, tokenizer: Tokenizer) -> bool:
    """True when every text has ids."""
    try:
        tokenizer.encode(_RARE)
    except Exception as error:  # the tokenizers library raises plain Exception
        source.faults.append(f"{name}: a text with a character outside the vocabulary cannot be encoded: {error}")
        return False
    return True


def _apply_types(document: dict[str, Any], settings: TokenizerSettings) -> list[str]:
    """What the model gets where token types are not handed to it; told where no file says so."""
    processor = without_types(document["post_processor"])
    is_usual = processor == document["post_processor"] or INPUTS in settings.keys
    document["post_processor"] = processor
    reason = f"model_input_names of {settings.kind.name} has no token_type_ids ({settings.file} may have it)"
    return [] if is_usual else [f"{TOKENIZER}: post_processor: every token is of type 0: {reason}"]


def _apply_pipeline(source: SourceDirectory, folder: str, document: dict[str, Any]) -> list[str]:
    """What sentence-transformers does to the tokenizer that transformers gave it."""
    file = settings_file(source, folder)
    config = source.read_object(file)
    for key in TOKENIZER_ARGUMENTS:
        if tokenizer_argument(config, key):
            source.refuse(file, key, config[key], "no argument of the tokenizer is supported")
    is_wanted = config.get("do_lower_case", False)
    if not isinstance(is_wanted, bool):
        source.refuse(file, "do_lower_case", is_wanted, "true or false is needed")
        return []
    normalizer = document["normalizer"]
    is_list = normalizer is not None and normalizer["type"] == "Sequence"
    steps = normalizer["normalizers"] if is_list else [normalizer] if normalizer else []
    if not is_wanted or any(step["type"] == "Lowercase" for step in steps):
        return []
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    return [f"{TOKENIZER}: a Lowercase step was put first ({file}: do_lower_case)"]
