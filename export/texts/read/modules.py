"""The pipeline of modules.json: which modules there are, where, and what they do together.

The modules of PyLate are those that sentence-transformers reads in their place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.texts.read.source import SourceDirectory
from export.texts.read.transformer import check_task
from service.manifest import Task

PIPELINE = "config_sentence_transformers.json"

_BASE = "sentence_transformers."
_MODULES = {
    f"{_BASE}{path}": kind
    for kind in ("Transformer", "Pooling", "Normalize", "Dense", "Dropout")
    for path in (
        f"models.{kind}",
        f"models.{kind.lower()}.{kind}",
        f"base.modules.{kind.lower()}.{kind}",
        f"sentence_transformer.modules.{kind.lower()}.{kind}",
    )
} | {
    f"{_BASE}sparse_encoder.models.MLMTransformer": "MLMTransformer",
    f"{_BASE}sparse_encoder.modules.mlm_transformer.MLMTransformer": "MLMTransformer",
    f"{_BASE}sparse_encoder.models.SpladePooling": "SpladePooling",
    f"{_BASE}sparse_encoder.modules.splade_pooling.SpladePooling": "SpladePooling",
    f"{_BASE}multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask": "MultiVectorMask",
    "pylate.models.Dense.Dense": "Dense",
}
# The kinds in their order, as a pattern → what they do together, and what the first of them must give.
_ORDERS: Mapping[str, tuple[Task, str]] = {
    "Transformer Pooling( Dense| Dropout)*( Normalize)?": ("embedding", "feature-extraction"),
    "Transformer": ("sequence_classification", "sequence-classification"),
    "(MLM)?Transformer SpladePooling": ("sparse", "fill-mask"),
    "Transformer( Dense)* (MultiVectorMask Normalize|Normalize MultiVectorMask)": (
        "late_interaction",
        "feature-extraction",
    ),
}
# PyLate's own files leave out what it does by itself.
_PYLATE = "Transformer( Dense)+"
_ORDERS_TOLD = (
    "Transformer, Pooling, any number of Dense and, if any, Normalize are needed; Transformer and SpladePooling; "
    "Transformer, any number of Dense, MultiVectorMask and Normalize; or, of a cross-encoder, Transformer alone"
)
_NAMES = ("module_input_name", "module_output_name")


@dataclass(frozen=True, slots=True)
class Modules:
    """Folders of the modules, "" or "name/".

    model: where config.json, weights and tokenizer lie. pooling, splade, mask: None = no such module. normalize: there
    is one. dense: in their order. task: what the modules do together; None = there is no modules.json.
    """

    model: str = ""
    pooling: str | None = None
    normalize: bool = False
    splade: str | None = None
    dense: tuple[str, ...] = ()
    mask: str | None = None
    task: Task | None = None


def read_modules(source: SourceDirectory) -> Modules:
    """The pipeline of modules.json. Faults: a module or an order that is not supported."""
    entries = source.read_json("modules.json")
    if entries is None:
        return Modules()
    if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        source.faults.append("modules.json: a list of modules is needed")
        return Modules()
    kinds = _read_kinds(source, entries)
    num_faults = len(source.faults)
    folders = [_read_folder(source, entry) for entry in entries]
    if len(source.faults) > num_faults:
        return Modules()
    found = _find_order(source, kinds) if kinds is not None else None
    if kinds is None or found is None:
        return Modules(next(iter(folders), ""))
    task, gives = found
    by_kind = dict(zip(kinds, folders, strict=True))
    default = "fill-mask" if kinds[0] == "MLMTransformer" else "feature-extraction"
    check_task(source, folders[0], gives, default=default, has_lengths=task == "late_interaction")
    dense = tuple(folder for kind, folder in zip(kinds, folders, strict=True) if kind == "Dense")
    # What the name of the vectors is where a module does not say it: MultiVectorEncoder changes that of Dense alone.
    wanted = "token_embeddings" if task == "late_interaction" else "sentence_embedding"
    for folder in dense:
        _check_names(source, folder, wanted, default=wanted)
    if "Normalize" in by_kind:
        _check_names(source, by_kind["Normalize"], wanted, default="sentence_embedding")
    return Modules(
        model=folders[0],
        pooling=by_kind.get("Pooling"),
        normalize="Normalize" in by_kind,
        splade=by_kind.get("SpladePooling"),
        dense=dense,
        mask=by_kind.get("MultiVectorMask"),
        task=task,
    )


def is_pylate(source: SourceDirectory) -> bool:
    """Whether PyLate wrote the directory, before sentence-transformers had models of this kind."""
    return bool(source.read_object(PIPELINE).get("model_type") == "ColBERT")


def _read_kinds(source: SourceDirectory, entries: Sequence[Mapping[str, Any]]) -> list[str] | None:
    kinds = []
    for entry in entries:
        kind = _MODULES.get(str(entry.get("type")))
        if kind is None:
            expected = f"one of {', '.join(dict.fromkeys(_MODULES.values()))} is needed"
            source.refuse("modules.json", "type", entry.get("type"), expected)
        else:
            kinds.append(kind)
    return kinds if len(kinds) == len(entries) else None


def _find_order(source: SourceDirectory, kinds: Sequence[str]) -> tuple[Task, str] | None:
    order = " ".join(kinds)
    if is_pylate(source) and re.fullmatch(_PYLATE, order):
        return "late_interaction", "feature-extraction"
    found = next((does for pattern, does in _ORDERS.items() if re.fullmatch(pattern, order)), None)
    if found is None:
        source.refuse("modules.json", "type", list(kinds), _ORDERS_TOLD)
    return found


def _read_folder(source: SourceDirectory, entry: Mapping[str, Any]) -> str:
    path = entry.get("path", "")
    if not isinstance(path, str):
        source.refuse("modules.json", "path", path, "a text is needed")
        return ""
    return f"{path}/" if path else ""


def _check_names(source: SourceDirectory, folder: str, expected: str, *, default: str) -> None:
    """What a module reads and writes: the vectors that this pipeline is for. default: where it does not say."""
    file = f"{folder}config.json"
    config = source.read_object(file) if folder else {}
    for key in _NAMES:
        value = config.get(key)
        if (default if value is None and key == _NAMES[0] else value) not in (None, expected):
            source.refuse(file, key, value, f"{expected} is needed")
