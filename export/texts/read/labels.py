"""What the logits of a classifier stand for: labels, the kind of problem, and what makes scores of them.

Follows transformers for labels and problem, and sentence-transformers for the activation of a cross-encoder. Where
neither says anything, the activation is the one that transformers' pipelines choose by the problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from export.checkpoint import is_index
from export.texts.read.source import SourceDirectory
from service.manifest import HeadSpec

Problem = Literal["single_label", "multi_label", "regression"]
HeadActivation = Literal["softmax", "sigmoid", "identity"]

_DEFAULT_NUM_LABELS = 2
_MAX_LABELS = 1_000_000
_PROBLEMS: Mapping[str, Problem] = {
    "regression": "regression",
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
}
_ACTIVATIONS: Mapping[str, HeadActivation] = {"Softmax": "softmax", "Sigmoid": "sigmoid", "Identity": "identity"}
_TORCH = "torch.nn."
_PIPELINE = "config_sentence_transformers.json"


def read_labels(source: SourceDirectory, folder: str, num_logits: int = _DEFAULT_NUM_LABELS) -> HeadSpec | None:
    """Labels by index, the problem and the activation; None and faults when a value is not right.

    num_logits: how many labels there are where nothing says it.
    """
    file = f"{folder}config.json"
    num_faults = len(source.faults)
    config = source.read_object(file)
    labels = _read_names(source, file, config, num_logits)
    problem = _read_problem(source, file, config, len(labels))
    activation = _read_activation(source, file, config) or _usual(config, problem, len(labels))
    return None if len(source.faults) > num_faults else HeadSpec(labels=labels, problem=problem, activation=activation)


def _read_names(source: SourceDirectory, file: str, config: Mapping[str, Any], num_logits: int) -> tuple[str, ...]:
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        count = num_logits if count is None else count
        if type(count) is not int or not 1 <= count <= _MAX_LABELS:
            source.refuse(file, "num_labels", count, f"a whole number from 1 to {_MAX_LABELS} is needed")
            count = num_logits
        return tuple(f"LABEL_{index}" for index in range(count))
    by_index = {int(key): name for key, name in names.items() if is_index(key)} if isinstance(names, dict) else {}
    is_whole = isinstance(names, dict) and len(by_index) == len(names) and sorted(by_index) == list(range(len(names)))
    if not by_index or not is_whole or not all(isinstance(name, str) for name in by_index.values()):
        source.refuse(file, "id2label", names, "an object with a text for every index from 0 on is needed")
        return ("",)
    return tuple(by_index[index] for index in range(len(by_index)))


def _read_problem(source: SourceDirectory, file: str, config: Mapping[str, Any], num_labels: int) -> Problem:
    """As transformers concludes where problem_type is absent: one label is a regression, of several one is right."""
    value = config.get("problem_type")
    if value is None:
        return "regression" if num_labels == 1 else "single_label"
    if not isinstance(value, str) or value not in _PROBLEMS:
        source.refuse(file, "problem_type", value, f"one of {', '.join(_PROBLEMS)} is needed")
        return "single_label"
    if _PROBLEMS[value] == "single_label" and num_labels == 1:
        source.refuse(file, "problem_type", value, "another is needed with one label, whose share would always be 1")
    return _PROBLEMS[value]


def _usual(config: Mapping[str, Any], problem: Problem, num_labels: int) -> HeadActivation:
    if config.get("problem_type") == "regression":
        return "identity"
    return "sigmoid" if problem == "multi_label" or num_labels == 1 else "softmax"


def _read_activation(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> HeadActivation | None:
    """What a cross-encoder was saved with, the newest place first. None where it says nothing."""
    own = config.get("sentence_transformers")
    places = (
        (_PIPELINE, "activation_fn", source.read_object(_PIPELINE).get("activation_fn")),
        (file, "sentence_transformers.activation_fn", own.get("activation_fn") if isinstance(own, dict) else None),
        (file, "sbert_ce_default_activation_function", config.get("sbert_ce_default_activation_function")),
    )
    for place, key, value in places:
        if value is None:
            continue
        name = value.rpartition(".")[2] if isinstance(value, str) and value.startswith(_TORCH) else ""
        if name not in _ACTIVATIONS:
            source.refuse(place, key, value, f"{', '.join(_ACTIVATIONS)} of {_TORCH}modules is needed")
            return None
        return _ACTIVATIONS[name]
    return None
