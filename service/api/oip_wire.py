"""Tensors of the Open Inference Protocol ↔ arrays: JSON, nested or flat, and the binary extension.

Binary tensors follow the JSON in the order of the tensors, little-endian and row-major; an element of BYTES is its
length in 4 bytes and then itself. Knows no model: what a tensor must be is a `Port`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import orjson

from service.api.body import describe
from service.api.oip_schema import InferTensor
from service.errors import RequestError
from service.runners.base import Array

DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(dtype).newbyteorder("<")
    for name, dtype in (("BOOL", "?"), ("INT32", "i4"), ("INT64", "i8"), ("FP16", "f2"), ("FP32", "f4"))
}
BYTES = "BYTES"
_TAKEN: Mapping[str, tuple[frozenset[type], str]] = {
    "BOOL": (frozenset({bool}), "booleans"),
    "INT32": (frozenset({int}), "integers"),
    "INT64": (frozenset({int}), "integers"),
    "FP32": (frozenset({int, float}), "numbers"),
    BYTES: (frozenset({str}), "strings"),
}
_LENGTH = struct.Struct("<I")
# numpy counts in 64 bits: a shape of larger sizes is an error there, even where one of them is 0.
_MAX_SIZE = 2**31
# Python's lock is held while a list becomes an array, and while an array is written: slices let others in.
_SLICE_VALUES = 2**15

Values = Array | list[str]


@dataclass(frozen=True, slots=True)
class Port:
    """One tensor that a model takes or gives. axes: words are symbolic, numbers are fixed; the first is `batch`."""

    name: str
    datatype: str
    axes: tuple[str | int, ...]
    is_required: bool = True

    def metadata(self) -> dict[str, Any]:
        """The protocol's words for it: -1 = any size."""
        shape = [axis if isinstance(axis, int) else -1 for axis in self.axes]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of an answer. parts: arrays that are its values, one after the other."""

    port: Port
    shape: tuple[int, ...]
    parts: Sequence[Array]
    is_binary: bool


def read_tensors(
    tensors: Sequence[InferTensor], ports: Mapping[str, Port], rest: memoryview, *, max_items: int
) -> dict[str, Values]:
    """The values of every input, by name; texts as strings. rest: what followed the JSON.

    Raises RequestError naming the tensor at fault.
    """
    values: dict[str, Values] = {}
    for tensor in tensors:
        port = ports.get(tensor.name)
        if port is None:
            raise _names_fault(f"this model takes {', '.join(ports)}, got {tensor.name!r:.60}", "unknown_tensor")
        if port.name in values:
            raise _names_fault(f"each tensor once, got {port.name} more than once", "invalid_value")
        _check_declared(port, tensor, max_items)
        size = _binary_size(port, tensor, len(rest))
        values[port.name] = _from_json(port, tensor) if size is None else _from_binary(port, tensor.shape, rest[:size])
        rest = rest[size or 0 :]
    if missing := [port.name for port in ports.values() if port.is_required and port.name not in values]:
        raise _names_fault(f"{', '.join(missing)} is missing", "missing_tensor")
    if len(rest):
        raise RequestError(f"body: {len(rest)} bytes are left after the last tensor", param="body")
    return values


def write_answer(head: Mapping[str, Any], outputs: Sequence[Output]) -> tuple[bytes, int | None]:
    """The answer, and how many of its bytes are JSON; None = all, and none of its tensors is binary."""
    written: list[dict[str, Any]] = []
    binary: list[bytes | memoryview] = []
    for output in outputs:
        fields: dict[str, Any] = {
            "name": output.port.name,
            "datatype": output.port.datatype,
            "shape": output.shape,
        }
        if output.is_binary:
            dtype = DTYPES[output.port.datatype]
            parts = [np.ascontiguousarray(part, dtype=dtype) for part in output.parts]
            fields["parameters"] = {"binary_data_size": sum(part.nbytes for part in parts)}
            binary += [part.data for part in parts]
        else:
            fields["data"] = orjson.Fragment(b"".join(_flat_json(output.parts)))
        written.append(fields)
    text = orjson.dumps({**head, "outputs": written})
    if not any(output.is_binary for output in outputs):
        return text, None
    return b"".join([text, *binary]), len(text)


def fault(port: Port, message: str, *, code: str | None = None) -> RequestError:
    """A RequestError about one input."""
    return RequestError(f"inputs.{port.name}: {message}", param=f"inputs.{port.name}", code=code)


def _names_fault(message: str, code: str) -> RequestError:
    return RequestError(f"inputs: {message}", param="inputs", code=code)


def _check_declared(port: Port, tensor: InferTensor, max_items: int) -> None:
    if tensor.datatype != port.datatype:
        known = [*DTYPES, BYTES]
        got = tensor.datatype if tensor.datatype in known else f"another one; taken are {', '.join(known)}"
        raise fault(port, f"{port.datatype} needed, got {got}", code="wrong_dtype")
    if len(tensor.shape) != len(port.axes):
        needed = f"[{', '.join(map(str, port.axes))}]"
        raise fault(port, f"shape {needed} needed, got {len(tensor.shape)} axes", code="wrong_shape")
    if not 1 <= tensor.shape[0] <= max_items:
        raise fault(
            port, f"axis batch: 1 to {max_items} allowed, got {describe(tensor.shape[0])}", code="too_many_items"
        )
    for axis, size in zip(port.axes, tensor.shape, strict=True):
        if not 1 <= size <= _MAX_SIZE:
            raise fault(port, f"axis {axis}: 1 to {_MAX_SIZE} allowed, got {describe(size)}", code="wrong_shape")


def _binary_size(port: Port, tensor: InferTensor, num_left: int) -> int | None:
    """How many bytes behind the JSON are this tensor's; None = it is in the JSON."""
    parameters = tensor.parameters or {}
    if "shared_memory_region" in parameters:
        raise fault(port, "shared memory is not taken: send `data`, or the tensor as binary", code="unsupported")
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise fault(port, f"binary_data_size: an integer from 0 is expected, got {describe(size)}")
    if tensor.data is not None:
        raise fault(port, "has `data` and `binary_data_size`: one of them is needed")
    if size > num_left:
        raise fault(
            port, f"binary_data_size is {describe(size)}, only {num_left} bytes are left of the body behind the JSON"
        )
    return size


def _from_json(port: Port, tensor: InferTensor) -> Values:
    if port.datatype == "FP16":
        raise fault(port, "JSON has no FP16: send it as binary, with `binary_data_size`", code="unsupported")
    if not isinstance(tensor.data, list):
        raise fault(port, f"data: a list is expected, got {describe(tensor.data)}")
    flat = _flatten(port, tensor.shape, tensor.data)
    parts = []
    for start in range(0, len(flat), _SLICE_VALUES):
        part = flat[start : start + _SLICE_VALUES]
        _check_types(port, part, start, tensor.shape)
        if port.datatype != BYTES:
            parts.append(_array(port, part))
    if port.datatype == BYTES:
        return flat
    return np.concatenate(parts or [_array(port, [])]).reshape(tensor.shape)


def _check_types(port: Port, part: list[Any], start: int, shape: Sequence[int]) -> None:
    # A bool is an int to Python, so the exact types are asked for, in C for all at once.
    taken, words = _TAKEN[port.datatype]
    if not set(map(type, part)) <= taken:
        index, bad = next((index, value) for index, value in enumerate(part) if type(value) not in taken)
        raise fault(port, f"{words} needed, got {describe(bad)} at {_place(start + index, shape)}")


def _array(port: Port, numbers: list[Any]) -> Array:
    try:
        # What overflows FP32 becomes infinite, and is refused like every infinity, with its place.
        with np.errstate(over="ignore"):
            return np.array(numbers, dtype=DTYPES[port.datatype])
    except OverflowError:
        raise fault(port, f"a number is too large for {port.datatype}") from None


def _flatten(port: Port, shape: Sequence[int], data: list[Any]) -> list[Any]:
    """The values in one list. Nested lists must have this shape throughout."""
    if len(shape) == 1 or not (data and isinstance(data[0], list)):
        if len(data) != prod(shape):
            raise fault(port, f"{_count(prod(shape))} values needed by its shape, got {len(data)}")
        return data
    level: list[Any] = [data]
    for depth, size in enumerate(shape):
        for index, part in enumerate(level):
            if not isinstance(part, list) or len(part) != size:
                where = _place(index, shape[:depth])
                raise fault(port, f"data{where}: a list of {describe(size)} is expected, got {describe(part)}")
        level = list(chain.from_iterable(level))
    return level


def _place(index: int, shape: Sequence[int]) -> str:
    """Where a value of a flat list stands: `[0, 2]`; nothing for the list as a whole."""
    return str([int(step) for step in np.unravel_index(index, tuple(shape))]) if shape else ""


def _from_binary(port: Port, shape: Sequence[int], raw: memoryview) -> Values:
    if port.datatype == BYTES:
        return list(_texts(port, prod(shape), raw))
    dtype = DTYPES[port.datatype]
    size = prod(shape) * dtype.itemsize
    if len(raw) != size:
        raise fault(port, f"{_count(size)} bytes needed by its shape and {port.datatype}, got {len(raw)}")
    if port.datatype == "BOOL" and len(raw) and (found := np.frombuffer(raw, dtype=np.uint8)).max() > 1:
        index = int(np.argmax(found > 1))
        raise fault(port, f"bytes 0 or 1 needed, got {found[index]} at {_place(index, shape)}")
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def _texts(port: Port, count: int, raw: memoryview) -> Iterator[str]:
    start = 0
    for index in range(count):
        first = start + _LENGTH.size
        if first > len(raw):
            raise fault(port, f"{count} elements needed, the bytes end before element {index}")
        end = first + _LENGTH.unpack_from(raw, start)[0]
        if end > len(raw):
            raise fault(port, f"element {index} says {end - first} bytes, {len(raw) - first} are left")
        try:
            yield str(raw[first:end], "utf-8")
        except UnicodeDecodeError as error:
            raise fault(port, f"element {index} is not UTF-8 at byte {error.start}") from None
        start = end
    if start < len(raw):
        raise fault(port, f"{count} elements needed, {len(raw) - start} bytes are left after the last one")


def _count(number: int) -> str:
    # Sizes of a shape are whatever the caller wrote: hundreds of digits must not be told.
    return str(number) if number < 10**18 else "more than 10^18"


def _flat_json(parts: Sequence[Array]) -> Iterator[bytes]:
    """A flat JSON list of all values, without a Python object for each."""
    yield b"["
    is_first = True
    for part in parts:
        flat = np.ascontiguousarray(part).reshape(-1)
        for start in range(0, flat.size, _SLICE_VALUES):
            if not is_first:
                yield b","
            is_first = False
            piece = flat[start : start + _SLICE_VALUES]
            yield orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    yield b"]"
