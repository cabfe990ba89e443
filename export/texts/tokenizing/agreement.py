"""A tokenizer.json against what its class makes of the file's vocabulary.

transformers 5 takes vocabulary and tokens alone from the file and builds the rest itself; transformers 4 takes the file
and lets a few settings have their say. Where both do the same, or differ only in what the one's converters wrote for
models of the other, what transformers 5 builds is written. Any other difference is refused by name: one of the two is
not what the model was trained with, and nothing says which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, models
from tokenizers.processors import PostProcessor

from export.texts.read.source import SourceDirectory
from export.texts.tokenizing.classes import Parts
from export.texts.tokenizing.settings import TokenizerSettings
from export.texts.tokenizing.special import ListedToken
from service.manifest import TOKENIZER

State = dict[str, Any]

# Keys of a step that every version writes over the file → the setting that it takes.
_OVERRIDDEN = {
    "lowercase": "do_lower_case",
    "handle_chinese_chars": "tokenize_chinese_chars",
    "strip_accents": "strip_accents",
    "add_prefix_space": "add_prefix_space",
}
# A byte-level pre-tokenizer does not look at it.
_UNUSED = "trim_offsets"
# Last steps that converters of sentencepiece models write and the classes do not build: they take off white space, at
# which the classes split anyway.
_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}}
_LAST_STEPS: tuple[list[State], ...] = (
    [{"type": "Strip", "strip_left": False, "strip_right": True}, _SPACES | {"content": "▁"}],
    [_SPACES | {"content": " "}],
)
_SPLIT: State = {"type": "WhitespaceSplit"}
_MAX_TOKENS_TOLD = 10
_PLAIN = '("tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json takes the file as it is)'
_PROBE_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class TokenizerJson:
    """One tokenizer.json under comparison.

    document: its content, into which what differs is written. tokenizer: the same, as the library has it.
    changes: what was written, in words.
    """

    source: SourceDirectory
    name: str
    settings: TokenizerSettings
    document: State
    tokenizer: Tokenizer
    changes: list[str] = field(default_factory=list)

    def refuse(self, key: str, found: Any, expected: str) -> None:
        """Note what the class does not build."""
        way = f"is needed, which transformers' {self.settings.kind.name} uses whatever this file says {_PLAIN}"
        self.source.refuse(self.name, key, found, f"{expected} {way}")

    def write(self, part: str, built: Any) -> None:
        """Put what the class builds in the place of what the file has."""
        self.document[part] = state(built)
        self.changes.append(f"{TOKENIZER}: {part}: written as {self.settings.kind.name} of transformers builds it")


def state(part: Any) -> Any:
    """A part of a tokenizer as its file has it."""
    return None if part is None else json.loads(part.__getstate__())


def compare_parts(file: TokenizerJson, built: Tokenizer) -> None:
    """Normalizer, pre-tokenizer and template. built: around the file's own vocabulary."""
    parts = file.settings.kind.parts
    assert parts is not None
    _compare_steps(file, "normalizer", built.normalizer, _LAST_STEPS)
    _compare_steps(file, "pre_tokenizer", built.pre_tokenizer, ())
    if not (parts.keeps_template and file.tokenizer.post_processor is not None):
        _compare_template(file, parts, built.post_processor)


def _compare_steps(file: TokenizerJson, part: str, built: Any, last: Sequence[Sequence[State]]) -> None:
    found, expected = _steps(state(getattr(file.tokenizer, part))), _steps(state(built))
    if [step["type"] for step in found] == [step["type"] for step in expected]:
        pairs = zip(found, expected, strict=True)
        differences = [(key, one[key], other[key]) for one, other in pairs for key in one if one[key] != other[key]]
        for key, value, wanted in differences:
            if key in _OVERRIDDEN:
                told = f"{TOKENIZER}: {part}.{key} is {json.dumps(wanted)} ({file.settings.file}: {_OVERRIDDEN[key]})"
                file.changes.append(told)
            else:
                file.refuse(f"{part}.{key}", value, json.dumps(wanted))
        if differences:
            file.document[part] = state(built)
    elif any(found == [*expected, *steps] for steps in last) or (expected[:1] == [_SPLIT] and found == expected[1:]):
        file.write(part, built)
    else:
        expected_types = ", ".join(step["type"] for step in expected) or "null"
        file.refuse(part, state(getattr(file.tokenizer, part)), expected_types)


def _steps(part: State | None) -> list[State]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        steps = part["normalizers"] if "normalizers" in part else part["pretokenizers"]
        return [step for one in steps for step in _steps(one)]
    return [{key: value for key, value in part.items() if part["type"] != "ByteLevel" or key != _UNUSED}]


def _compare_template(file: TokenizerJson, parts: Parts, built: PostProcessor) -> None:
    found = file.tokenizer.post_processor
    has_types = file.settings.gives_types
    if _framed(found, has_types=has_types) != _framed(built, has_types=has_types):
        first, last = (file.settings.name_of(key) for key in parts.frame)
        num_framing = len(_framed(built, has_types=False)[1]) - 2
        middle = " ".join([last or ""] * (num_framing - 2))
        expected = f"the template {first} A {middle} B {last}, with the ids of the vocabulary,"
        file.refuse("post_processor", state(found), expected)
    elif parts.algorithm == "BPE" and state(found) != state(built):  # offsets are trimmed there
        file.write("post_processor", built)


def _framed(processor: PostProcessor | None, *, has_types: bool) -> tuple[list[int], ...]:
    """What a template makes of one token and of a pair of them: ids, and types if the model gets them."""
    probe = Tokenizer(models.WordLevel({"a": _PROBE_ID}, unk_token="a")).encode("a", add_special_tokens=False)
    if processor is None:
        return [_PROBE_ID], [_PROBE_ID] * 2, *(([0], [0, 1]) if has_types else ())
    single, pair = processor.process(probe, None), processor.process(probe, probe)
    return single.ids, pair.ids, *((single.type_ids, pair.type_ids) if has_types else ())


def compare_tokens(file: TokenizerJson, theirs: Tokenizer, added: Sequence[ListedToken]) -> None:
    """The added tokens of the file against those that transformers has in the end.

    theirs: with every token of `added` in it.
    """
    origins = {listed.content: listed for listed in added}
    expected, found = _added_tokens(theirs), _added_tokens(file.tokenizer)
    wrong = [
        index for index in sorted(expected.keys() | found.keys()) if _differ(expected.get(index), found.get(index))
    ]
    missing = [index for index in wrong if index not in found and origins[expected[index]["content"]].file is None]
    for index in [index for index in wrong if index not in missing][:_MAX_TOKENS_TOLD]:
        if index in expected:
            origin = origins[expected[index]["content"]]
            text = "a token as tokenizer.json has it in added_tokens is needed; transformers would add this one"
            file.source.refuse(origin.file or file.settings.file, origin.key, {"id": index} | expected[index], text)
        else:
            text = "a token that transformers knows is needed; added_tokens_decoder in tokenizer_config.json lacks this"
            file.source.refuse(file.name, "added_tokens", {"id": index} | found[index], text)
    if missing or any(expected.get(index) != one for index, one in found.items()):
        file.document["added_tokens"] = [{"id": index} | expected[index] for index in sorted(expected)]
        names = ", ".join(expected[index]["content"] for index in missing) or "which are special"
        file.changes.append(
            f"{TOKENIZER}: added_tokens: as {file.settings.kind.name} of transformers has them: {names}"
        )


def _differ(expected: State | None, found: State | None) -> bool:
    """True when ids may differ: that a token is special changes none where it is verbatim."""
    states = [one and one | {"special": one["special"] or not one["normalized"]} for one in (expected, found)]
    return states[0] != states[1]


def _added_tokens(tokenizer: Tokenizer) -> dict[int, State]:
    return {index: token.__getstate__() for index, token in tokenizer.get_added_tokens_decoder().items()}
