"""What a late-interaction model has beside its encoder: a projection of each token, markers before texts, lengths.

Three layouts are read, as sentence-transformers' MultiVectorEncoder reads them: its own, PyLate's, and that of
Stanford's ColBERT, whose projection lies among the encoder's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.texts.read.modules import PIPELINE, Modules, is_pylate
from export.texts.read.pipeline import Limit, Prompts
from export.texts.read.source import SourceDirectory
from export.texts.read.transformer import settings_file
from models.config import EncoderConfig

METADATA = "artifact.metadata"
ARCHITECTURE = "HF_ColBERT"
_ROLES = ("query", "document")
_MARKERS = {"query": ("query_token_id", "[unused0]"), "document": ("doc_token_id", "[unused1]")}
_MIN_LENGTH = 3


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """prompts: with the markers in them. markers: prompts that are tokens, if the vocabulary has them.

    limit: the longest document; None = as long as the encoder takes. left_out: what is told to who exports it.
    """

    prompts: Prompts
    markers: tuple[str, ...]
    limit: Limit | None
    left_out: tuple[str, ...]

    def limit_within(self, config: EncoderConfig, usual: Limit) -> Limit:
        """The longest document, in the positions that there are. usual: of the encoder by itself"""
        if self.limit is None:
            return usual
        return self.limit if self.limit.max_tokens <= config.max_tokens else usual


def is_stanford(config: Mapping[str, Any]) -> bool:
    """Whether Stanford's ColBERT wrote this config.json."""
    names = config.get("architectures")
    return isinstance(names, list) and ARCHITECTURE in names


def read_late(source: SourceDirectory, modules: Modules, prompts: Prompts) -> LateInteraction:
    """prompts: of config_sentence_transformers.json. Faults: a value that is not right, or changes the vectors."""
    if modules.task is None and is_stanford(source.read_object(f"{modules.model}config.json")):
        return _read_stanford(source, prompts)
    if is_pylate(source):
        return _read_pylate(source, prompts)
    return _read_own(source, modules, prompts)


def _read_own(source: SourceDirectory, modules: Modules, prompts: Prompts) -> LateInteraction:
    file = settings_file(source, modules.model)
    config = source.read_object(file)
    expansion = config.get("query_expansion")
    left_out = []
    if expansion is not None:
        attends = expansion.get("attend", False) if isinstance(expansion, dict) else expansion
        left_out += _read_expansion(source, file, "query_expansion", attends)
    if modules.mask is not None:
        mask_file = f"{modules.mask}config.json"
        mask = source.read_object(mask_file)
        if mask.get("keep_only_token_ids"):
            source.refuse(mask_file, "keep_only_token_ids", mask["keep_only_token_ids"], "null is needed: a text model")
        left_out += _skipped(mask_file, "skiplist_words", mask.get("skiplist_words"))
    limit = _read_length(source, file, config, "document_length")
    return LateInteraction(prompts, (), limit, tuple(left_out))


def _read_pylate(source: SourceDirectory, prompts: Prompts) -> LateInteraction:
    """PyLate puts a prefix before the prompt, and pads queries unless do_query_expansion is false."""
    config = source.read_object(PIPELINE)
    texts, markers = dict(prompts.texts), []
    for role in _ROLES:
        prefix = config.get(f"{role}_prefix")
        if prefix is None:
            continue
        if not isinstance(prefix, str):
            source.refuse(PIPELINE, f"{role}_prefix", prefix, "a text is needed")
            continue
        texts[role] = prefix + texts.get(role, "").removeprefix(prefix)
        markers.append(prefix)
    left_out = []
    if config.get("do_query_expansion") is not False:
        key = "attend_to_expansion_tokens"
        left_out += _read_expansion(source, PIPELINE, key, config.get(key))
    words = config.get("skiplist_words")
    left_out += _skipped(PIPELINE, "skiplist_words", True if words is None else words)
    limit = _read_length(source, PIPELINE, config, "document_length")
    return LateInteraction(Prompts(texts, prompts.default), tuple(markers), limit, tuple(left_out))


def _read_stanford(source: SourceDirectory, prompts: Prompts) -> LateInteraction:
    config = source.read_object(METADATA)
    texts, markers = dict(prompts.texts), []
    for role, (key, default) in _MARKERS.items():
        marker = config.get(key) or default
        if not isinstance(marker, str):
            source.refuse(METADATA, key, marker, "a token is needed")
            continue
        markers.append(f"{marker} ")
        texts.setdefault(role, f"{marker} ")
    key = "attend_to_mask_tokens"
    left_out = _read_expansion(source, METADATA, key, config.get(key))
    left_out += _skipped(METADATA, "mask_punctuation", config.get("mask_punctuation", True))
    limit = _read_length(source, METADATA, config, "doc_maxlen")
    return LateInteraction(Prompts(texts, prompts.default), tuple(markers), limit, tuple(left_out))


def _read_expansion(source: SourceDirectory, file: str, key: str, attends: Any) -> list[str]:
    """Queries are padded with mask tokens, whose vectors count. They change those of the query only if it sees them."""
    if attends not in (None, False):
        expected = "false is needed: queries that attend to tokens beyond their own are not served"
        source.refuse(file, key, attends, expected)
    return [
        f"{file}: {key}: queries are padded with mask tokens there; here each text has the vectors of its own tokens"
    ]


def _skipped(file: str, key: str, words: Any) -> list[str]:
    if not words:
        return []
    return [f"{file}: {key}: tokens of documents are left out of scores there; here every token has its vector"]


def _read_length(source: SourceDirectory, file: str, config: Mapping[str, Any], key: str) -> Limit | None:
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or value < _MIN_LENGTH:
        source.refuse(file, key, value, f"a whole number from {_MIN_LENGTH} is needed")
        return None
    return Limit(value, f"{file}: {key}")
