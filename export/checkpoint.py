"""The published weights, by header only: which tensors a safetensors file holds, where, and which the model needs.

Reads no values: the graphs point at the offsets found here.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from export.errors import ExportError
from models.config import EncoderConfig
from models.families.family import Family, Rows, find_any
from models.families.parameters import parameter_shapes
from models.head_config import HeadConfig

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_MAX_AXES = 64
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E5M2": 1, "F8_E4M3": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
# What weights may be stored in: the numbers of numpy and the half that keeps float32's range.
FLOATS = ("F32", "F16", "BF16", "F64")
_MAX_SHOWN_CHARS = 80
_MAX_INDEX_DIGITS = 18
# Half of a surrogate pair, which is no text.
_HALF = re.compile("[\ud800-\udfff]")
_LFS_STUB = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor inside a file.

    file: its name, relative to the directory that is read or written. dtype: as a safetensors header writes it. offset:
    from the start of the file, in bytes.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The parameters of an encoder and its head among published tensors.

    tensors: canonical name → where it lies. names: canonical name → the published tensor that it is, or is a part of.
    unmatched: published tensors that nothing uses.
    """

    tensors: Mapping[str, StoredTensor]
    names: Mapping[str, str]
    unmatched: tuple[str, ...]

    @property
    def num_parameters(self) -> int:
        """Numbers in the tensors that are used."""
        return sum(prod(tensor.shape) for tensor in self.tensors.values())


def is_index(text: str) -> bool:
    """Whether a text is a whole number from 0, with no more digits than any index or offset has."""
    return text.isdecimal() and len(text) <= _MAX_INDEX_DIGITS


def is_lfs_stub(head: bytes) -> bool:
    """True when a file's first bytes are those of a Git LFS pointer."""
    return head.startswith(_LFS_STUB)


def read_header(path: Path, name: str = "") -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file by name. Raises ExportError naming the file and what is broken in it.

    name: what the file is called, relative to its model directory; else its own name.
    """
    name = name or path.name
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LENGTH_BYTES)
        if is_lfs_stub(head + file.read(len(_LFS_STUB))):
            raise ExportError(f"{name}: a Git LFS pointer, not weights: run `git lfs pull` in {path.parent}")
        length = int.from_bytes(head, "little")
        if len(head) < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise ExportError(f"{name}: header length {length}, file size {size}: truncated, or not safetensors")
        file.seek(_LENGTH_BYTES)
        header = _parse_json(name, file.read(length))
    _check_metadata(name, header.pop("__metadata__", None))
    start = _LENGTH_BYTES + length
    tensors = {key: _read_entry(name, key, entry, start) for key, entry in header.items()}
    _check_layout(name, tensors, start, size)
    return tensors


def _parse_json(file: str, content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content.decode(), object_pairs_hook=_text_pairs)
    except ValueError as error:
        raise ExportError(f"{file}: the header is not JSON: {error}") from None
    except RecursionError:
        raise ExportError(f"{file}: the header is nested too deeply to be read") from None
    if not isinstance(header, dict):
        raise ExportError(f"{file}: the header is a {type(header).__name__}, not an object")
    return header


def _text_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are each there once, and whose names and texts are all of whole characters."""
    for name, value in pairs:
        for text in (name, value):
            if isinstance(text, str) and _HALF.search(text):
                raise ValueError(f"{name[:_MAX_SHOWN_CHARS]!a} holds half of a character")
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice[:_MAX_SHOWN_CHARS]!r} is there twice")
    return found


def _check_metadata(file: str, metadata: Any) -> None:
    """As the library that reads the file takes it: texts by name, or nothing."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise ExportError(
            f"{file}: header entry '__metadata__': an object of texts is needed, got {reprlib.repr(metadata)}"
        )
    for key, value in metadata.items():
        if not isinstance(value, str):
            needed = f"a text is needed for {reprlib.repr(key)}, got {reprlib.repr(value)}"
            raise ExportError(f"{file}: header entry '__metadata__': {needed}")


def _read_entry(file: str, name: str, entry: Any, start: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        item_bytes = _ITEM_BYTES[dtype]
        is_right = isinstance(shape, list) and len(shape) <= _MAX_AXES
        is_right = is_right and all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        is_right = is_right and end - begin == prod(shape) * item_bytes
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ExportError(f"{file}: header entry {name[:_MAX_SHOWN_CHARS]!r} is wrong: {reprlib.repr(entry)}")
    return StoredTensor(file, dtype, tuple(shape), start + begin, end - begin)


def _check_layout(file: str, tensors: Mapping[str, StoredTensor], start: int, size: int) -> None:
    """As the format has it: the tensors lie one after the other, from the header to the end of the file."""
    end, last = start, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if tensor.offset != end:
            relation = "overlaps" if tensor.offset < end else "does not follow"
            raise ExportError(
                f"{file}: {name}: data_offsets: begins at {tensor.offset - start} and {relation} {last}, "
                f"which ends at {end - start}"
            )
        end, last = tensor.offset + tensor.num_bytes, name
    if end != size:
        raise ExportError(f"{file}: the header describes {end} bytes, the file has {size}: truncated, or not whole")


def match_checkpoint(
    family: Family,
    config: EncoderConfig,
    stored: Mapping[str, StoredTensor],
    head: HeadConfig | None = None,
    file: str = "model.safetensors",
) -> Checkpoint:
    """Find every parameter of an encoder and its head among published tensors.

    file: what lists them. Raises ExportError with all that are missing or do not fit.
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
            f"config.json: {family.config_names[field]}: the {count} {what} in {file} are needed, "
            f"got {getattr(config, field)}: {missing}… is missing"
        )
    names: dict[str, tuple[str, ...]] = {ours: (prefix + theirs,) for ours, theirs in family.parameters(config).items()}
    shapes = parameter_shapes(config)
    if head is not None:
        names |= family.heads[head.name].parameters(head, prefix)
        shapes |= head.parameter_shapes(config.dim)
    tensors, used, lost, faults = {}, {}, set(), []
    for ours, theirs in names.items():
        name, rows = find_any(theirs, stored), family.rows(ours)
        if name is None:
            # A tensor that is several parameters is missing once.
            faults += [f"{file}: {' or '.join(theirs)} ({ours}): missing"] if theirs not in lost else []
            lost.add(theirs)
        elif found := _tensor_faults(name, stored[name], rows.whole(shapes[ours])):
            faults += [fault for fault in found if fault not in faults]
        else:
            tensors[ours], used[ours] = _take(stored[name], rows), name
    if faults:
        raise ExportError("the weights do not fit config.json", faults)
    unused = tuple(prefix + part for part in family.unused) + family.unused
    left = sorted(set(stored) - set(used.values()))
    return Checkpoint(tensors, used, tuple(name for name in left if not name.startswith(unused)))


def _take(tensor: StoredTensor, rows: Rows) -> StoredTensor:
    """Some rows of a tensor, where they lie: row-major, they follow one another."""
    if rows.count == 1:
        return tensor
    num_bytes, shape = tensor.num_bytes // rows.count, (tensor.shape[0] // rows.count, *tensor.shape[1:])
    return replace(tensor, shape=shape, offset=tensor.offset + rows.index * num_bytes, num_bytes=num_bytes)


def _tensor_faults(name: str, tensor: StoredTensor, shape: tuple[int, ...]) -> list[str]:
    faults = []
    if tensor.shape != shape:
        faults.append(f"{tensor.file}: {name}: shape {list(tensor.shape)}, config.json asks for {list(shape)}")
    if tensor.dtype not in FLOATS:
        faults.append(f"{tensor.file}: {name}: dtype {tensor.dtype}, one of {', '.join(FLOATS)} is needed")
    return faults
