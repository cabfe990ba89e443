"""The `tensors` of `/v1/encode` → arrays: nested lists, or dtype, shape and data as base64 or as one flat list.

What they must be for the model is checked by `engine.tensor_inputs`; here only that they are arrays at all.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from service.api.body import describe
from service.engine.tensor_inputs import fault
from service.errors import RequestError
from service.graph_spec import GraphSpec, TensorSpec
from service.runners.base import Array

_LEAVES: Mapping[str, tuple[type, ...]] = {"f": (int, float), "i": (int,), "b": (bool,)}
_WORDS = {"f": "numbers", "i": "integers", "b": "true and false"}
_FIELDS = ("dtype", "shape", "data")
_MAX_AXES = 8
# Python's lock is held while a list becomes an array: slices let others in.
_SLICE_VALUES = 2**15
# numpy counts in 64 bits: a shape of larger sizes is an error there, even where one of them is 0.
_MAX_SIZE = 2**31


def parse_tensors(value: Any, graph: GraphSpec) -> dict[str, Array]:
    """Arrays by name. Raises RequestError naming the tensor, and the place in it, that is none.

    value: as it came in the body. Nested lists take the type that the model needs, and must be numbers of that kind.
    """
    if not isinstance(value, dict):
        raise RequestError(f"tensors: an object of tensors by name is expected, got {describe(value)}", param="tensors")
    specs = {spec.name: spec for spec in graph.inputs}
    for name in value:
        if name not in specs:
            raise RequestError(
                f"tensors: this model takes {', '.join(specs)}, got {name!r:.60}",
                param="tensors",
                code="unknown_tensor",
            )
    return {name: _array(specs[name], content) for name, content in value.items() if content is not None}


def _array(spec: TensorSpec, content: Any) -> Array:
    if isinstance(content, list):
        return _from_lists(spec, content)
    if isinstance(content, dict):
        return _from_fields(spec, content)
    raise fault(spec.name, f"nested lists, or an object of {', '.join(_FIELDS)} are expected, got {describe(content)}")


def _from_lists(spec: TensorSpec, content: list[Any]) -> Array:
    shape = _check_lists(spec, content, np.dtype(spec.dtype).kind, "")
    for _ in shape[1:]:
        content = list(chain.from_iterable(content))
    return _typed(spec, content).reshape(shape)


def _check_lists(spec: TensorSpec, content: list[Any], kind: str, place: str) -> tuple[int, ...]:
    """The shape of nested lists, whose leaves are all of one kind."""
    if place.count("[") >= _MAX_AXES:
        raise fault(spec.name, f"at most {_MAX_AXES} axes are taken")
    if content and isinstance(content[0], list):
        shapes: dict[int, tuple[int, ...]] = {}
        for index, part in enumerate(content):
            if not isinstance(part, list):
                raise _bad_leaf(spec, kind, part, f"{place}[{index}]", expected="a list")
            shapes[index] = _check_lists(spec, part, kind, f"{place}[{index}]")
            if shapes[index] != shapes[0]:
                got = f"{list(shapes[0])} at {place}[0] and {list(shapes[index])} at {place}[{index}]"
                raise fault(
                    spec.name,
                    f"lists of one shape are expected, got {got}: pad and mask shorter rows, or send them apart",
                    code="wrong_shape",
                )
        return (len(content), *shapes[0])
    # A bool is an int to Python, so the exact types are asked for, in C for all at once.
    if not set(map(type, content)) <= set(_LEAVES[kind]):
        index, bad = next((i, leaf) for i, leaf in enumerate(content) if type(leaf) not in _LEAVES[kind])
        raise _bad_leaf(spec, kind, bad, f"{place}[{index}]")
    return (len(content),)


def _bad_leaf(spec: TensorSpec, kind: str, bad: Any, place: str, expected: str = "") -> RequestError:
    return fault(spec.name, f"{expected or _WORDS[kind]} expected, got {describe(bad)} at {place}", code="wrong_dtype")


def _typed(spec: TensorSpec, flat: Sequence[Any]) -> Array:
    parts = []
    for start in range(0, max(1, len(flat)), _SLICE_VALUES):
        try:
            with np.errstate(over="ignore"):  # infinity is refused by name later
                parts.append(np.array(flat[start : start + _SLICE_VALUES], dtype=spec.dtype))
        except OverflowError:
            raise fault(spec.name, f"a number does not fit into {spec.dtype}") from None
    return np.concatenate(parts)


def _from_fields(spec: TensorSpec, content: Mapping[str, Any]) -> Array:
    if set(content) != set(_FIELDS):
        raise fault(spec.name, f"an object of {', '.join(_FIELDS)} is expected, got {', '.join(content)[:100] or '{}'}")
    dtype, shape, data = (content[field] for field in _FIELDS)
    if dtype != spec.dtype:
        given = dtype if isinstance(dtype, str) and len(dtype) < 20 else describe(dtype)
        raise fault(spec.name, f"dtype {spec.dtype} needed, got {given}", code="wrong_dtype")
    count = prod(_check_sizes(spec, shape))
    if isinstance(data, str):
        return _from_base64(spec, data, shape, count)
    if not isinstance(data, list):
        raise fault(spec.name, f"data: base64 or a flat list is expected, got {describe(data)}")
    if any(isinstance(leaf, list) for leaf in data[:1]):
        raise fault(spec.name, "data: a flat list is expected beside `shape`, got lists in it", code="wrong_shape")
    _check_lists(spec, data, np.dtype(spec.dtype).kind, "")
    if len(data) != count:
        raise fault(spec.name, f"data: {count} values needed for shape {shape}, got {len(data)}", code="wrong_shape")
    return _typed(spec, data).reshape(shape)


def _check_sizes(spec: TensorSpec, shape: Any) -> list[int]:
    """Raises RequestError naming the entry that is no size."""
    if not isinstance(shape, list) or len(shape) > _MAX_AXES:
        got = f"{len(shape)} of them" if isinstance(shape, list) else describe(shape)
        raise fault(spec.name, f"shape: a list of at most {_MAX_AXES} sizes is expected, got {got}")
    for place, size in enumerate(shape):
        if type(size) is not int or size < 0:
            raise fault(spec.name, f"shape[{place}]: an integer from 1 is expected, got {describe(size)}")
    if bad := [place for place, size in enumerate(shape) if not 1 <= size <= _MAX_SIZE]:
        told = f"shape[{bad[0]}]: sizes from 1 to {_MAX_SIZE} allowed, got {describe(shape[bad[0]])}"
        raise fault(spec.name, told, code="wrong_shape")
    return shape


def _from_base64(spec: TensorSpec, data: str, shape: list[int], count: int) -> Array:
    try:
        content = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise fault(spec.name, "data: not base64") from None
    return from_bytes(spec, content, shape, count)


def from_bytes(spec: TensorSpec, content: bytes, shape: Sequence[int], count: int) -> Array:
    """Packed little-endian values, row-major. Raises RequestError for another number of bytes, and for bools over 1."""
    dtype = np.dtype(spec.dtype)
    if len(content) != count * dtype.itemsize:
        raise fault(
            spec.name,
            f"data: {count * dtype.itemsize} bytes of {spec.dtype} needed for shape {list(shape)}, got {len(content)}",
            code="wrong_shape",
        )
    if dtype.kind == "b" and np.frombuffer(content, np.uint8).max(initial=0) > 1:
        raise fault(spec.name, "data: bytes of 0 or 1 needed for bool")
    return np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape).astype(dtype, copy=False)
