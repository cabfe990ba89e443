"""The published weights of a model folder, in whichever files they lie: found and described, no pickle is run.

The first of these that is there: `model.safetensors`, its shards, `pytorch_model.bin`, its shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from export.checkpoint import StoredTensor, read_header
from export.errors import ExportError
from export.texts.precision import Bytes
from export.texts.read.source import SourceDirectory, shorten

_SAFETENSORS, _TORCH = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"
_FORMS = (_SAFETENSORS, _SAFETENSORS + _INDEX, _TORCH, _TORCH + _INDEX)
_MAX_LISTED = 5
_NEEDS_TORCH = (
    "{name}: reading it needs PyTorch: install it beside qkv (pip install torch), or write the weights as "
    'model.safetensors where it is installed: python -c "import glob, torch, safetensors.torch as s; '
    "s.save_file({{k: v.clone().contiguous() for f in glob.glob('pytorch_model*.bin') "
    "for k, v in torch.load(f, map_location='cpu', weights_only=True).items()}}, 'model.safetensors')\""
)

Read = Callable[[str], Bytes]
_File = tuple[Mapping[str, StoredTensor], Read]


@dataclass(frozen=True, slots=True)
class Weights:
    """Published weights.

    file: what lists them: one file itself, or the index of several. sha256: of each file that holds tensors.
    tensors: published name → where it lies. read: the bytes of a tensor, by its published name.
    """

    file: str
    sha256: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]
    read: Read

    @property
    def is_one_safetensors(self) -> bool:
        """A graph can point into the very file."""
        return self.file.endswith(_SAFETENSORS)

    @property
    def identity(self) -> str:
        """SHA-256 of one safetensors file, or over those of all files."""
        if self.is_one_safetensors:
            return self.sha256[self.file]
        lines = (f"{name} {sha256}\n" for name, sha256 in sorted(self.sha256.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def has_weights(source: SourceDirectory, folder: str) -> bool:
    """Whether a model folder has weights of any form, whole or not."""
    return any(source.has(folder + form) for form in _FORMS)


def read_weights(source: SourceDirectory, folder: str) -> Weights | None:
    """The weights of a model folder; None and faults when they are missing or broken. folder: "" or "name/"."""
    num_faults = len(source.faults)
    name = folder + next((form for form in _FORMS if source.has(folder + form)), _SAFETENSORS)
    listed = _read_index(source, name, folder) if name.endswith(_INDEX) else {name: None}
    tensors: dict[str, StoredTensor] = {}
    reads: dict[str, Read] = {}
    for file, expected in listed.items():
        found, read = _read_file(source, file) or ({}, None)
        if read is None:
            continue
        if expected is not None:
            _check_shard(source, file, expected, frozenset(found))
        tensors |= found
        reads[file] = read
    if len(source.faults) > num_faults:
        return None
    sha256 = {file: source.sha256[file] for file in listed}
    return Weights(name, sha256, tensors, lambda tensor: reads[tensors[tensor].file](tensor))


def _read_index(source: SourceDirectory, name: str, folder: str) -> dict[str, frozenset[str] | None]:
    """The shards, and the tensors that each must hold."""
    num_faults = len(source.faults)
    places = source.read_object(name, is_required=True).get("weight_map")
    if len(source.faults) > num_faults:
        return {}
    is_right = isinstance(places, dict) and places and all(isinstance(file, str) and file for file in places.values())
    if not isinstance(places, dict) or not is_right:
        source.refuse(name, "weight_map", places, "an object with the file of every tensor is needed")
        return {}
    files: dict[str, set[str]] = {}
    for tensor, file in places.items():
        files.setdefault(folder + file, set()).add(tensor)
    return {file: frozenset(files[file]) for file in sorted(files)}


def _check_shard(source: SourceDirectory, file: str, expected: frozenset[str], found: frozenset[str]) -> None:
    """Every tensor is where the index has it, and nowhere else."""
    if missing := expected - found:
        source.faults.append(f"{shorten(file)}: the index lists {_some(missing)}, the file does not hold them")
    if extra := found - expected:
        source.faults.append(f"{shorten(file)}: holds {_some(extra)}, the index does not list them there")


def _some(names: frozenset[str]) -> str:
    shown = sorted(names)[:_MAX_LISTED]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{shorten(', '.join(shown))}{more}"


def _read_file(source: SourceDirectory, name: str) -> _File | None:
    path = source.find(name, what="weights")
    if path is None:
        return None
    try:
        found = _open_torch(path, name) if name.endswith(".bin") else _open_safetensors(path, name)
        source.hash(name)
    except ExportError as error:
        source.faults.append(error.message)
        return None
    except OSError as error:
        source.faults.append(f"{name}: cannot be read: {error.strerror}")
        return None
    return found


def _open_safetensors(path: Path, name: str) -> _File:
    tensors = read_header(path, name)

    @cache
    def content() -> Bytes:
        return np.memmap(path, dtype=np.uint8, mode="r")

    def read(tensor: str) -> Bytes:
        stored = tensors[tensor]
        return content()[stored.offset : stored.offset + stored.num_bytes]

    return tensors, read


def _open_torch(path: Path, name: str) -> _File:
    try:
        from export.texts.read.torch_file import open_torch_file  # torch: only for files that need it
    except ImportError:
        raise ExportError(_NEEDS_TORCH.format(name=name)) from None
    return open_torch_file(path, name)
