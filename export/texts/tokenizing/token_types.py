"""Token types of a template: all 0 where transformers does not hand them to the model.

`model_input_names` decides that, in the files or by the tokenizer's class. The model then takes every token for one of
type 0, whatever the template says. transformers 4 gave types by default with more classes than 5 does.
"""

from __future__ import annotations

from typing import Any

State = dict[str, Any]

_FIRST, _SECOND = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")


def without_types(processor: State | None) -> State:
    """The same post-processor with every type 0; without one the second text of a pair would be of type 1."""
    if processor is None:
        return _template([], [])
    kind = processor["type"]
    if kind == "TemplateProcessing":
        return processor | {part: _zeroed(processor[part]) for part in ("single", "pair")}
    if kind == "BertProcessing":
        return _template([processor["cls"]], [processor["sep"]])
    if kind == "Sequence":
        steps = [step if step["type"] == "ByteLevel" else without_types(step) for step in processor["processors"]]
        has_template = any(step["type"] != "ByteLevel" for step in steps)
        return processor | {"processors": steps if has_template else [*steps, _template([], [])]}
    if kind == "ByteLevel":  # which only trims offsets
        return {"type": "Sequence", "processors": [processor, _template([], [])]}
    return processor


def _zeroed(pieces: list[dict[str, State]]) -> list[dict[str, State]]:
    return [{kind: one | {"type_id": 0} for kind, one in piece.items()} for piece in pieces]


def _template(first: list[Any], last: list[Any]) -> State:
    """A template of type 0. first, last: token and id of what frames the text, if anything does."""
    before, after = ([{"SpecialToken": {"id": token, "type_id": 0}} for token, _ in part] for part in (first, last))
    return {
        "type": "TemplateProcessing",
        "single": [*before, _FIRST, *after],
        "pair": [*before, _FIRST, *after, _SECOND, *after],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]} for token, index in first + last},
    }
