"""tokenizer.json as the bundle holds it: it must give the ids that Hugging Face's loaders give for the same directory.

Those do not go by the file alone. A BERT class of `transformers` builds its own normalizer, pre-tokenizer and template
around the file's vocabulary; every class adds tokens from other files; sentence-transformers' `do_lower_case`
lower-cases first. The service reads nothing but the file, so the settings of the normalizer are written into it, as
every version of transformers applies them, and each other difference is refused: versions do not agree on those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models, processors

from export.texts.read.source import SourceDirectory
from export.texts.read.tokenizer_settings import TokenizerSettings, listed_token, read_settings
from service.manifest import TOKENIZER

# key of tokenizer_config.json → key of the normalizer, the value that an absent key means, and the values allowed
_BERT_OVERRIDES: Mapping[str, tuple[str, bool | None, tuple[bool | None, ...]]] = {
    "do_lower_case": ("lowercase", True, (True, False)),
    "tokenize_chinese_chars": ("handle_chinese_chars", True, (True, False)),
    "strip_accents": ("strip_accents", None, (True, False, None)),
}
_PREFIX = "##"
_MAX_WORD_CHARS = 100
_BERT_WAY = (
    "is needed, which transformers' BertTokenizer uses whatever this file says "
    '("tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json takes the file as it is)'
)
_PIPELINE = "sentence_bert_config.json"
_PIPELINE_ARGUMENTS = ("tokenizer_args", "processor_kwargs", "processing_kwargs", "tokenizer_name_or_path")
# In no vocabulary of use, and kept by every normalizer.
_RARE = "\U00013000"
_MAX_TOKENS_TOLD = 10


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """content: the bytes to write. changes: what differs from the source; empty when these are the source's bytes.

    num_ids: one more than the highest id that it can give.
    """

    content: bytes
    num_ids: int
    changes: tuple[str, ...] = ()


def read_tokenizer(source: SourceDirectory, folder: str) -> TokenizerFile | None:
    """The tokenizer of a model folder; None and faults when it is missing, broken or not what transformers uses."""
    name = f"{folder}{TOKENIZER}"
    num_faults = len(source.faults)
    document = source.read_object(name, is_required=True)
    settings = read_settings(source, folder)
    content = source.read(name, is_required=False)
    if content is None or len(source.faults) > num_faults:
        return None
    tokenizer = _load(source, name, content)
    if tokenizer is None or settings is None:
        return None
    document["normalizer"] = _state(tokenizer.normalizer)  # in full, where the file leaves out what is usual
    changes = []
    if settings.kind == "bert":
        changes = _apply_bert_overrides(source, name, document, settings)
        _check_bert(source, name, tokenizer, settings)
    else:
        _check_padding(source, name, tokenizer, settings)
    if len(source.faults) == num_faults:
        _check_added_tokens(source, name, document, tokenizer, settings)
    changes += _apply_pipeline(source, folder, document)
    if len(source.faults) > num_faults:
        return None
    if changes:
        content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return TokenizerFile(content, max(tokenizer.get_vocab().values()) + 1, tuple(changes))


def _load(source: SourceDirectory, name: str, content: bytes) -> Tokenizer | None:
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the tokenizers library raises plain Exception
        source.faults.append(f"{name}: the tokenizers library cannot read it: {error}")
        return None
    try:
        tokenizer.encode(_RARE)
    except Exception as error:
        source.faults.append(f"{name}: a text with a character outside the vocabulary cannot be encoded: {error}")
        return None
    return tokenizer


def _apply_bert_overrides(
    source: SourceDirectory, name: str, document: Mapping[str, Any], settings: TokenizerSettings
) -> list[str]:
    normalizer = document["normalizer"]
    if normalizer is None or normalizer["type"] != "BertNormalizer":
        source.refuse(name, "normalizer", normalizer, f"BertNormalizer {_BERT_WAY}")
        return []
    if not normalizer["clean_text"]:
        source.refuse(name, "normalizer.clean_text", False, f"true {_BERT_WAY}")
    changes = []
    for key, (ours, default, allowed) in _BERT_OVERRIDES.items():
        value = settings.values.get(key, default)
        if not any(value is one for one in allowed):
            source.refuse(settings.file(key), key, value, f"{' or '.join(map(json.dumps, allowed))} is needed")
        elif normalizer[ours] != value:
            changes.append(f"{TOKENIZER}: normalizer.{ours} is {json.dumps(value)} (tokenizer_config.json: {key})")
            normalizer[ours] = value
    return changes


def _check_bert(source: SourceDirectory, name: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    """What a BERT class uses in any case must stand in the file, of which it takes vocabulary and tokens alone."""
    model = tokenizer.model
    if not isinstance(model, models.WordPiece):
        source.refuse(name, "model.type", type(model).__name__, f"WordPiece {_BERT_WAY}")
        return
    for key, expected in (("continuing_subword_prefix", _PREFIX), ("max_input_chars_per_word", _MAX_WORD_CHARS)):
        if (found := getattr(model, key)) != expected:
            source.refuse(name, f"model.{key}", found, f"{json.dumps(expected)} {_BERT_WAY}")
    if (kind := _state(tokenizer.pre_tokenizer)) != {"type": "BertPreTokenizer"}:
        source.refuse(name, "pre_tokenizer", kind, f"BertPreTokenizer {_BERT_WAY}")
    if (unknown := settings.name_of("unk_token")) != model.unk_token:
        expected = f"the unk_token {json.dumps(unknown)} of {settings.file('unk_token')} is needed"
        source.refuse(name, "model.unk_token", model.unk_token, expected)
    _check_template(source, name, tokenizer, settings)


def _check_template(source: SourceDirectory, name: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    frame = []
    for key in ("cls_token", "sep_token"):
        token = settings.name_of(key)
        index = None if token is None else tokenizer.token_to_id(token)
        if token is None or index is None or not token or any(char in token for char in " :$"):
            source.refuse(settings.file(key), key, token, "a token of the vocabulary is needed")
            return
        frame.append((token, index))
    (first, _), (last, _) = cls, sep = frame
    template = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0", pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1", special_tokens=[cls, sep]
    )
    found = _state(tokenizer.post_processor)
    if found not in (_state(template), _state(processors.BertProcessing(sep, cls))):
        expected = f"the template {first} A {last} B {last}, with the ids of the vocabulary, {_BERT_WAY}"
        source.refuse(name, "post_processor", found, expected)


def _check_padding(source: SourceDirectory, name: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    """The token that a file pads with becomes a special one where no other file names any."""
    padding = tokenizer.padding
    if padding is None or "pad_token" in settings.values:
        return
    if padding["pad_token"] not in {token.content for token in tokenizer.get_added_tokens_decoder().values()}:
        source.refuse(name, "padding.pad_token", padding["pad_token"], "one of added_tokens is needed")


def _check_added_tokens(
    source: SourceDirectory, name: str, document: Mapping[str, Any], tokenizer: Tokenizer, settings: TokenizerSettings
) -> None:
    """Add tokens as transformers does, and compare what it then has with what the file gives by itself."""
    entries = document.get("added_tokens") or []
    own = {entry["id"]: listed_token(entry, name, "added_tokens") for entry in entries}
    to_add = settings.tokens_to_add(own)
    theirs = _bare(tokenizer) if settings.kind == "bert" else Tokenizer.from_str(tokenizer.to_str())
    theirs.add_tokens([listed.token for listed in to_add])
    origins = {listed.token.content: listed for listed in to_add}
    expected, found = _added_tokens(theirs), _added_tokens(tokenizer)
    wrong = [index for index in sorted(expected.keys() | found.keys()) if expected.get(index) != found.get(index)]
    for index in wrong[:_MAX_TOKENS_TOLD]:
        if index in expected:
            origin = origins[expected[index]["content"]]
            text = "a token as tokenizer.json has it in added_tokens is needed; transformers would add this one"
            source.refuse(origin.file, origin.key, {"id": index} | expected[index], text)
        else:
            text = "a token that transformers knows is needed; added_tokens_decoder in tokenizer_config.json lacks this"
            source.refuse(name, "added_tokens", {"id": index} | found[index], text)


def _bare(tokenizer: Tokenizer) -> Tokenizer:
    vocab, model = tokenizer.get_vocab(with_added_tokens=False), tokenizer.model
    assert isinstance(model, models.WordPiece)
    return Tokenizer(models.WordPiece(vocab, unk_token=model.unk_token))


def _added_tokens(tokenizer: Tokenizer) -> dict[int, dict[str, Any]]:
    """Every added token by id, as far as it changes ids: that a token is special changes none where it is verbatim."""
    states = {index: token.__getstate__() for index, token in tokenizer.get_added_tokens_decoder().items()}
    return {index: state | {"special": state["special"] or not state["normalized"]} for index, state in states.items()}


def _state(component: Any) -> Any:
    return None if component is None else json.loads(component.__getstate__())


def _apply_pipeline(source: SourceDirectory, folder: str, document: dict[str, Any]) -> list[str]:
    """What sentence-transformers does to the tokenizer that transformers gave it."""
    file = f"{folder}{_PIPELINE}"
    config = source.read_object(file)
    for key in _PIPELINE_ARGUMENTS:
        if config.get(key):
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
