"""What a request's tensors must be, by the manifest's word: names, types, axes, limits, values.

Every message names the tensor, what is needed and what came; `param` is `tensors.NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.errors import RequestError
from service.graph_spec import GraphSpec, TensorSpec
from service.manifest import TensorManifest
from service.runners.base import Array

PARAM = "tensors"

# Up to this power of a type's largest number, sums of squares of products of values with weights do not overflow.
_COMPUTABLE = 0.25


def check_tensors(
    manifest: TensorManifest, tensors: Mapping[str, Array], *, max_items: int
) -> tuple[int, dict[str, int]]:
    """The batch size, and the size of every symbolic axis. Raises RequestError naming the tensor at fault.

    tensors: arrays by input name, batch first; masks and indices may be left out.
    """
    graph = manifest.graph("encode")
    _check_names(graph, tensors)
    given = [(spec, tensors[spec.name]) for spec in graph.inputs if spec.name in tensors]
    sizes: dict[str, tuple[int, str]] = {}
    for spec, values in given:
        _check_type(spec, values)
        _check_shape(spec, values, sizes)
    _check_sizes(manifest, sizes, max_items)
    for spec, values in given:
        _check_values(spec, values)
        if spec.meaning == "index":
            _check_index(spec, values, sizes[spec.of][0])
        if spec.meaning == "mask":
            _check_mask(manifest, graph, spec, values)
    found = {axis: size for axis, (size, _) in sizes.items()}
    return found.pop("batch"), found


def with_indices(graph: GraphSpec, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """The tensors, and for each index that is left out one that names no position: a column of -1."""
    given = [(spec, tensors[spec.name]) for spec in graph.inputs if spec.name in tensors]
    sizes = {axis: size for spec, values in given for axis, size in zip(spec.axes, values.shape, strict=False)}
    absent = [spec for spec in graph.inputs if spec.meaning == "index" and spec.name not in tensors]
    shapes = [[axis if isinstance(axis, int) else sizes.get(axis, 1) for axis in spec.axes] for spec in absent]
    none = {spec.name: np.full(shape, -1, spec.dtype) for spec, shape in zip(absent, shapes, strict=True)}
    return {**tensors, **none}


def without_garbage(manifest: TensorManifest, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """The tensors, with features that a mask hides as padding has them where they are too large to compute with.

    A weight of 0 does not take away what overflows. Smaller ones stay, so that what a model gives at masked positions,
    which means nothing, is what its module gives there. Only where masks are proved to hide what stands under them.
    tensors: checked
    """
    if manifest.tensors.batching != "padded":
        return tensors
    inputs = [spec for spec in manifest.graph("encode").inputs if spec.name in tensors]
    masks = {spec.axes[1]: tensors[spec.name] for spec in inputs if spec.meaning == "mask" and len(spec.axes) == 2}
    found = dict(tensors)
    for spec in inputs:
        if spec.meaning == "features" and spec.dtype.startswith("float"):
            found[spec.name] = _without_garbage(spec, tensors[spec.name], masks)
    return found


def _without_garbage(spec: TensorSpec, values: Array, masks: Mapping[str | int, Array]) -> Array:
    most = float(np.finfo(values.dtype).max) ** _COMPUTABLE
    if -most <= values.min() and values.max() <= most:
        return values
    is_sound = np.abs(values) <= most
    for place, axis in enumerate(spec.axes):
        if axis in masks:
            shape = [len(values), *([1] * (values.ndim - 1))]
            shape[place] = -1
            keep = masks[axis].astype(bool).reshape(shape)
            values = np.where(keep | is_sound, values, np.asarray(spec.fill(0), values.dtype))
    return values


def fault(name: str, message: str, *, code: str | None = None) -> RequestError:
    """A RequestError about the tensor of that name."""
    return RequestError(f"{PARAM}.{name}: {message}", param=f"{PARAM}.{name}", code=code)


def _check_names(graph: GraphSpec, tensors: Mapping[str, Array]) -> None:
    known = {spec.name: spec for spec in graph.inputs}
    if unknown := [name for name in tensors if name not in known]:
        raise RequestError(
            f"{PARAM}: this model takes {', '.join(known)}, got {unknown[0]!r:.60}", param=PARAM, code="unknown_tensor"
        )
    if missing := [name for name, spec in known.items() if name not in tensors and spec.is_required]:
        raise RequestError(f"{PARAM}: {', '.join(missing)} is missing", param=PARAM, code="missing_tensor")


def _check_type(spec: TensorSpec, values: Array) -> None:
    if values.dtype != spec.dtype:
        raise fault(spec.name, f"{spec.dtype} needed, got {values.dtype}", code="wrong_dtype")


def _check_shape(spec: TensorSpec, values: Array, sizes: dict[str, tuple[int, str]]) -> None:
    needed = f"[{', '.join(map(str, spec.axes))}]"
    if values.ndim != len(spec.axes):
        raise fault(spec.name, f"shape {needed} needed, got {list(values.shape)}", code="wrong_shape")
    for axis, size in zip(spec.axes, values.shape, strict=True):
        if isinstance(axis, int):
            if size != axis:
                raise fault(spec.name, f"shape {needed} needed, got {list(values.shape)}", code="wrong_shape")
            continue
        known, other = sizes.setdefault(axis, (size, spec.name))
        if size != known:
            raise fault(
                spec.name,
                f"axis {axis} has size {size}, in {PARAM}.{other} it has {known}",
                code="wrong_shape",
            )


def _check_sizes(manifest: TensorManifest, sizes: Mapping[str, tuple[int, str]], max_items: int) -> None:
    for axis, (size, name) in sizes.items():
        limit = max_items if axis == "batch" else manifest.tensors.max_sizes[axis]
        if 1 <= size <= limit:
            continue
        message = f"axis {axis}: 1 to {limit} allowed, got {size}"
        if axis == "batch":
            raise fault(name, message, code="too_many_items")
        raise fault(name, message, code="context_length_exceeded")


def _check_values(spec: TensorSpec, values: Array) -> None:
    if values.dtype.kind == "f":
        is_bad = ~np.isfinite(values)
        if is_bad.any():
            raise fault(spec.name, f"finite numbers needed, got {_at(values, is_bad)}")
    if spec.range is not None:
        least, most = spec.range
        is_bad = (values < least) | (values > most)
        if is_bad.any():
            raise fault(spec.name, f"{least:g} to {most:g} allowed, got {_at(values, is_bad)}")
    if spec.below is not None:
        _check_range(spec, values, 0, spec.below)
    if spec.meaning == "mask" and spec.dtype != "bool":
        is_bad = (values != 0) & (values != 1)
        if is_bad.any():
            raise fault(spec.name, f"0 or 1 needed, got {_at(values, is_bad)}")


def _check_range(spec: TensorSpec, values: Array, least: int, end: int) -> None:
    is_bad = (values < least) | (values >= end)
    if is_bad.any():
        raise fault(spec.name, f"{least} to {end - 1} allowed, got {_at(values, is_bad)}")


def _check_index(spec: TensorSpec, values: Array, size: int) -> None:
    """Positions on another axis, each once in its row; -1 = none."""
    _check_range(spec, values, -1, size)
    ordered = np.sort(values, axis=-1)
    is_repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if is_repeated.any():
        raise fault(spec.name, f"each position once, got {_at(ordered[..., 1:], is_repeated)} more than once")


def _check_mask(manifest: TensorManifest, graph: GraphSpec, spec: TensorSpec, values: Array) -> None:
    keep = values.astype(bool)
    if not manifest.tensors.takes_empty_rows:
        is_empty = ~keep.any(axis=-1)
        if is_empty.any():
            where = ", ".join(str(int(index)) for index in np.argwhere(is_empty)[0])
            raise fault(spec.name, f"at least one position must be kept, row [{where}] keeps none", code="empty_row")
    if graph.masks == "right":
        is_bad = keep[..., 1:] & ~keep[..., :-1]
        if is_bad.any():
            place = [int(index) for index in np.argwhere(is_bad)[0]]
            raise fault(spec.name, f"padding on the right only is allowed, got a gap at {place}", code="bad_mask")


def _at(values: Array, is_bad: Array) -> str:
    index = tuple(int(i) for i in np.argwhere(is_bad)[0])
    return f"{values[index]} at {list(index)}"
