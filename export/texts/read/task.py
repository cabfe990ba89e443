"""What a model is for, and the head that does it: by the modules, by config.json's architectures, or as was asked.

A head is never made up: what config.json promises must be among the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from export.texts.read.labels import read_labels
from export.texts.read.late import is_stanford
from export.texts.read.modules import Modules
from export.texts.read.source import SourceDirectory
from models.config import EncoderConfig
from models.families.family import Family
from models.families.head import HeadError
from models.head_config import HeadConfig, HeadName, SparseActivation, SparsePooling
from service.manifest import HeadSpec, Task

# How the name of an architecture ends → what it is for. The encoder of a language model gives embeddings, as it does in
# sentence-transformers.
_ENDINGS: Mapping[str, Task] = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForMaskedLM": "embedding",
    "ForPreTraining": "embedding",
    "Model": "embedding",
}
_HEADS: Mapping[Task, HeadName] = {
    "sequence_classification": "sequence_classification",
    "token_classification": "token_classification",
    "sparse": "masked_lm",
}
# The first one is what an absent key means.
_SPARSE_CHOICES: Mapping[str, tuple[str, ...]] = {
    "pooling_strategy": ("max", "sum"),
    "activation_function": ("relu", "log1p_relu"),
}
_SPARSE_KEYS = (*_SPARSE_CHOICES, "embedding_dimension", "word_embedding_dimension")


@dataclass(frozen=True, slots=True)
class ReadHead:
    """A head, and what its logits stand for: None where they are those of a vocabulary."""

    config: HeadConfig
    spec: HeadSpec | None


def read_task(source: SourceDirectory, modules: Modules, asked: Task | None) -> Task | None:
    """What a directory is for. asked: by the user, over whatever it says. None and a fault when nothing says it."""
    if asked is not None:
        return asked
    if modules.task is not None:
        return modules.task
    file = f"{modules.model}config.json"
    if is_stanford(source.read_object(file)):
        return "late_interaction"
    names = source.read_object(file).get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        source.refuse(file, "architectures", names, "a list of names is needed")
        return None
    tasks = {next((task for end, task in _ENDINGS.items() if name.endswith(end)), None) for name in names}
    if len(tasks) > 1 or None in tasks:
        expected = f"names that end with {', '.join(_ENDINGS)}, all for one task, are needed, or --task"
        source.refuse(file, "architectures", names, expected)
        return None
    return tasks.pop() if tasks else "embedding"


def read_head(
    source: SourceDirectory, modules: Modules, found: tuple[Family, EncoderConfig], task: Task
) -> ReadHead | None:
    """The head that a task needs; None when it needs none, and with a fault when there cannot be one."""
    if task not in _HEADS:
        return None
    (family, encoder), name = found, _HEADS[task]
    file = f"{modules.model}config.json"
    if name not in family.heads:
        having = ", ".join(family.heads) or "none"
        source.refuse(file, "model_type", family.name, f"a family with a head for {task} is needed ({having} here)")
        return None
    num_faults = len(source.faults)
    config = source.read_object(file)
    spec = None if task == "sparse" else read_labels(source, modules.model)
    sparse = read_sparse(source, modules) if task == "sparse" else ("none", "relu")
    if len(source.faults) > num_faults:
        return None
    output_dim = encoder.vocab_size if spec is None else len(spec.labels)
    try:
        return ReadHead(family.heads[name].read_config(name, config, encoder, output_dim, sparse), spec)
    except HeadError as error:
        source.refuse(file, error.key, error.value, error.expected)
        return None


def read_sparse(source: SourceDirectory, modules: Modules) -> tuple[SparsePooling, SparseActivation]:
    """How SPLADE pools; without its module as sentence-transformers does by default."""
    if modules.splade is None:
        return "max", "relu"
    file = f"{modules.splade}config.json"
    config = source.read_object(file, is_required=True)
    if unknown := {key: value for key, value in config.items() if key not in _SPARSE_KEYS}:
        source.refuse(file, ", ".join(unknown), unknown, f"only {', '.join(_SPARSE_KEYS)} are known")
    found = {}
    for key, choices in _SPARSE_CHOICES.items():
        found[key] = config.get(key, choices[0])
        if found[key] not in choices:
            source.refuse(file, key, found[key], f"one of {', '.join(choices)} is needed")
    return found["pooling_strategy"], found["activation_function"]
