"""The published weights, by header only: which tensors a safetensors file holds, where, and which the model needs.

Reads no values: the graphs point at the offsets found here.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from export.errors import ExportError
from models.config import EncoderConfig
from models.families.family import Family, find_any
from models.families.parameters import parameter_shapes
from models.head_config import HeadConfig

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_MAX_AXES = 64
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E5M2": 1, "F8_E4M3": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_MAX_SHOWN_CHARS = 80
_LFS_STUB = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor inside a file. dtype: as the header writes it. offset: from the start of the file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The parameters of an encoder and its head in a file.

    tensors: canonical name → where it lies. unmatched: tensors of the file that nothing uses.
    """

    tensors: Mapping[str, StoredTensor]
    unmatched: tuple[str, ...]

    @property
    def num_parameters(self) -> int:
        """Numbers in the tensors that are used."""
        return sum(prod(tensor.shape) for tensor in self.tensors.values())


def is_lfs_stub(head: bytes) -> bool:
    """True when a file's first bytes are those of a Git LFS pointer."""
    return head.startswith(_LFS_STUB)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file by name. Raises ExportError naming the file and what is broken in it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LENGTH_BYTES)
        if is_lfs_stub(head + file.read(len(_LFS_STUB))):
            raise ExportError(f"{path.name}: a Git LFS pointer, not weights: run `git lfs pull` in {path.parent}")
        length = int.from_bytes(head, "little")
        if len(head) < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise ExportError(f"{path.name}: header length {length}, file size {size}: truncated, or not safetensors")
        file.seek(_LENGTH_BYTES)
        header = _parse_json(path, file.read(length))
    header.pop("__metadata__", None)
    start = _LENGTH_BYTES + length
    tensors = {name: _read_entry(path, name, entry, start) for name, entry in header.items()}
    _check_layout(path, tensors, start, size)
    return tensors


def _parse_json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content.decode())
    except ValueError as error:
        raise ExportError(f"{path.name}: the header is not JSON: {error}") from None
    except RecursionError:
        raise ExportError(f"{path.name}: the header is nested too deeply to be read") from None
    if not isinstance(header, dict):
        raise ExportError(f"{path.name}: the header is a {type(header).__name__}, not an object")
    return header


def _read_entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        item_bytes = _ITEM_BYTES[dtype]
        is_right = isinstance(shape, list) and len(shape) <= _MAX_AXES
        is_right = is_right and all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        is_right = is_right and end - begin == prod(shape) * item_bytes
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ExportError(f"{path.name}: header entry {name[:_MAX_SHOWN_CHARS]!r} is wrong: {reprlib.repr(entry)}")
    return StoredTensor(dtype, tuple(shape), start + begin, end - begin)


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor], start: int, size: int) -> None:
    """As the format has it: the tensors lie one after the other, from the header to the end of the file."""
    end, last = start, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if tensor.offset != end:
            relation = "overlaps" if tensor.offset < end else "does not follow"
            raise ExportError(
                f"{path.name}: {name}: data_offsets: begins at {tensor.offset - start} and {relation} {last}, "
                f"which ends at {end - start}"
            )
        end, last = tensor.offset + tensor.num_bytes, name
    if end != size:
        raise ExportError(
            f"{path.name}: the header describes {end} bytes, the file has {size}: truncated, or not whole"
        )


def match_checkpoint(
    family: Family, config: EncoderConfig, stored: Mapping[str, StoredTensor], head: HeadConfig | None = None
) -> Checkpoint:
    """Find every parameter of an encoder and its head in a file.

    Raises ExportError with all that are missing or do not fit.
    """
    try:
        prefix = family.find_prefix(stored)
    except ValueError as error:
        raise ExportError(str(error)) from None
    # Before any name is listed: a wrong number could ask for millions.
    field, what = ("num_layer_groups", "groups of layers") if config.num_layer_groups else ("num_layers", "layers")
    if (count := family.count_layers(stored, prefix)) < getattr(config, field):
        missing = prefix + family.layer_prefix.format(i=count)
        raise ExportError(
            f"config.json: {family.config_names[field]}: the {count} {what} in model.safetensors are needed, "
            f"got {getattr(config, field)}: {missing}… is missing"
        )
    names: dict[str, tuple[str, ...]] = {ours: (prefix + theirs,) for ours, theirs in family.parameters(config).items()}
    shapes = parameter_shapes(config)
    if head is not None:
        names |= family.heads[head.name].parameters(head, prefix)
        shapes |= head.parameter_shapes(config.dim)
    tensors, used, faults = {}, set(), []
    for ours, theirs in names.items():
        name = find_any(theirs, stored)
        if name is None:
            faults.append(f"model.safetensors: {' or '.join(theirs)} ({ours}): missing")
            continue
        used.add(name)
        tensors[ours] = stored[name]
        faults += _tensor_faults(name, stored[name], shapes[ours])
    if faults:
        raise ExportError("the weights do not fit config.json", faults)
    unused = tuple(prefix + part for part in family.unused) + family.unused
    return Checkpoint(tensors, tuple(sorted(name for name in set(stored) - used if not name.startswith(unused))))


def _tensor_faults(name: str, tensor: StoredTensor, shape: tuple[int, ...]) -> list[str]:
    faults = []
    if tensor.shape != shape:
        faults.append(f"model.safetensors: {name}: shape {list(tensor.shape)}, config.json asks for {list(shape)}")
    if tensor.dtype != "F32":
        faults.append(f"model.safetensors: {name}: dtype {tensor.dtype}, only F32 is supported")
    return faults
