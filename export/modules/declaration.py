"""A module's declaration → the tensor specs of its graph, or every fault of it at once, each by table and key.

The form is that of `models.signature`; it comes from a method `signature()` or from a TOML file. Needs no torch.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from export.errors import ExportError
from export.modules.signature import DEFAULT_MAX_SIZE, Signature, heads_of
from export.modules.tables import DTYPES, FLOATS, LAYOUT_KEYS, InputTable, OutputTable, RowsTable, Table
from export.modules.words import describe, either, nearest, told
from service.graph_spec import DENSE, LayoutSpec, TensorSpec

_BATCH = "batch"
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Whatever exporters write (`x:0`, `onnx::MatMul_3`, `/out/Add_output_0`, `42`), and nothing that a line of text hides.
_NAME = re.compile(r"[^\s\x00-\x1f\x7f\"'`\\]+")
_TABLES = ("inputs", "outputs", "max_sizes", "rows")
# Layouts whose number of columns follows from the length: their last axis is a word of its own.
_COUNTED = frozenset({"strided", "summary"})
_LENGTHS_HINT = ": whole numbers are token_ids, an index or a mask; for lengths take a mask, and its sum in forward"

_T = TypeVar("_T", bound=Table)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a signature file. Raises ExportError naming the file and what is wrong in it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ExportError(f"{path}: byte {error.start}: not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ExportError(f"{path}: not TOML: {error}") from None


def read_declaration(declaration: Any, where: str) -> Signature:
    """The signature that a declaration makes. where: what declares it, for the message.

    Raises ExportError with every fault found.
    """
    try:
        raw = orjson.loads(orjson.dumps(declaration))
    except (TypeError, ValueError, RecursionError) as error:
        raise ExportError(f"{where}: plain data is needed (tables, lists, texts, numbers): {error}") from None
    if not isinstance(raw, dict):
        raise ExportError(f"{where}: tables are needed ({', '.join(_TABLES)}), got {type(declaration).__name__}")
    reader = _Reader()
    signature = reader.read(raw)
    if reader.faults:
        raise ExportError(f"{where}: not a signature", list(dict.fromkeys(reader.faults)))
    return signature


class _Reader:
    """Collects the faults of one declaration."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def read(self, raw: Mapping[str, Any]) -> Signature:
        self.faults += [f"{name}: no such table{nearest(name, _TABLES)}" for name in raw if name not in _TABLES]
        inputs, outputs = self._tables(raw, "inputs", InputTable), self._tables(raw, "outputs", OutputTable)
        axes = self._axes_of_inputs(inputs)
        specs = tuple(self._input(name, table, inputs) for name, table in inputs.items())
        given = tuple(self._output(name, table, axes, inputs) for name, table in outputs.items())
        self.faults += [f"outputs.{name}: an input has that name too" for name in outputs if name in inputs]
        self._check_masks(inputs)
        self._check_attention(given)
        rows = self._table("rows", raw.get("rows", {}), RowsTable) or RowsTable()
        if rows.masks == "right" and not any(spec.meaning == "mask" for spec in specs):
            self.faults.append("rows.masks: no input is a mask")
        return Signature(specs, given, self._max_sizes(raw.get("max_sizes", {}), axes), rows.batching, rows.masks)

    def _tables(self, raw: Mapping[str, Any], name: str, kind: type[_T]) -> dict[str, _T]:
        tables = raw.get(name)
        if not isinstance(tables, dict) or not tables:
            self.faults.append(f"{name}: a table with at least one tensor is needed")
            return {}
        found = {}
        for key, value in tables.items():
            if not _NAME.fullmatch(key):
                self.faults.append(f"{name}.{key}: a name has no spaces, quotes or backslashes")
            if (table := self._table(f"{name}.{key}", value, kind)) is not None:
                found[key] = table
                self._check_axes(f"{name}.{key}.axes", table.axes)  # type: ignore[attr-defined]
        return found

    def _table(self, where: str, raw: Any, kind: type[_T]) -> _T | None:
        if not isinstance(raw, dict):
            self.faults.append(f"{where}: a table is needed, got {told(raw)}")
            return None
        try:
            return kind.model_validate_json(orjson.dumps(raw))
        except ValidationError as error:
            self.faults += [describe(where, fault, tuple(kind.model_fields)) for fault in error.errors()]
            return None

    def _check_axes(self, where: str, axes: tuple[str | int, ...]) -> None:
        if not axes or axes[0] != _BATCH:
            self.faults.append(f"{where}: the first axis is `batch`, got {told(list(axes))}")
        for axis in axes[1:]:
            if axis == _BATCH:
                self.faults.append(f"{where}: `batch` is the first axis only, got {told(list(axes))}")
            elif isinstance(axis, str) and not _WORD.fullmatch(axis):
                self.faults.append(f"{where}: a word or a number is needed, got {told(axis)}")
            elif isinstance(axis, int) and axis < 1:
                self.faults.append(f"{where}: a size of at least 1 is needed, got {axis}")

    def _axes_of_inputs(self, inputs: Mapping[str, InputTable]) -> tuple[str, ...]:
        """The symbolic axes of a row, in order of appearance."""
        words = (axis for table in inputs.values() for axis in table.axes[1:] if isinstance(axis, str))
        return tuple(dict.fromkeys(word for word in words if word != _BATCH))

    def _input(self, name: str, table: InputTable, inputs: Mapping[str, InputTable]) -> TensorSpec:
        where, meaning = f"inputs.{name}", table.meaning
        if table.dtype not in DTYPES[meaning]:
            hint = _LENGTHS_HINT if meaning == "features" and table.dtype.startswith("int") else ""
            needed = either(DTYPES[meaning])
            self.faults.append(f"{where}.dtype: {meaning}: {needed} needed, got {table.dtype!r}{hint}")
        if meaning == "token_ids" and table.below is None:
            self.faults.append(f"{where}.below: token_ids: the number of ids is needed")
        if table.range is not None and table.range[0] >= table.range[1]:
            self.faults.append(f"{where}.range: the least and the most are needed, got {told(table.range)}")
        for key in ("below", "of", "range"):
            owners = {"below": ("token_ids",), "of": ("index",), "range": ("features", "token_ids")}[key]
            if getattr(table, key) and meaning not in owners:
                verb = "have" if len(owners) > 1 else "has"
                self.faults.append(f"{where}.{key}: only {' and '.join(owners)} {verb} one, this is {meaning}")
        self._check_ids(where, table)
        if meaning == "mask" and not _is_mask(table.axes):
            self.faults.append(
                f"{where}.axes: a mask is [batch, keys] or [batch, queries, keys], got {told(list(table.axes))}"
            )
        of = self._index_axis(where, table, inputs) if meaning == "index" else ""
        return TensorSpec(
            name=name,
            dtype=table.dtype,
            axes=table.axes,
            meaning=meaning,
            below=table.below,
            of=of,
            range=table.range,
        )

    def _check_ids(self, where: str, table: InputTable) -> None:
        """A range of ids is of whole numbers that are ids."""
        if table.meaning != "token_ids" or table.range is None or table.below is None:
            return
        least, most = table.range
        if not (least.is_integer() and most.is_integer() and least >= 0 and most < table.below):
            needed = f"whole numbers from 0 to {table.below - 1}"
            self.faults.append(f"{where}.range: {needed} are needed, got {told(table.range)}")

    def _index_axis(self, where: str, table: InputTable, inputs: Mapping[str, InputTable]) -> str:
        """The axis that an index is of; the only other one where it is not said."""
        if not (len(table.axes) == 2 and isinstance(table.axes[1], str)):
            self.faults.append(f"{where}.axes: an index is [batch, a word], got {told(list(table.axes))}")
        others = self._axes_of_inputs({k: v for k, v in inputs.items() if v.meaning != "index"})
        if table.of in others:
            return table.of
        if not table.of and len(others) == 1:
            return others[0]
        got = f", got {table.of!r}" if table.of else ""
        self.faults.append(f"{where}.of: the axis that it has positions on is needed ({', '.join(others)}){got}")
        return table.of

    def _check_masks(self, inputs: Mapping[str, InputTable]) -> None:
        seen: dict[tuple[str | int, ...], str] = {}
        others = self._axes_of_inputs({k: v for k, v in inputs.items() if v.meaning != "mask"})
        for name, table in inputs.items():
            if table.meaning != "mask" or not _is_mask(table.axes):
                continue
            where = f"inputs.{name}.axes"
            if lone := [axis for axis in table.axes[1:] if axis not in others]:
                self.faults.append(f"{where}: no input but a mask has the axis {lone[0]}")
            if (other := seen.setdefault(table.axes[1:], name)) != name:
                self.faults.append(f"{where}: inputs.{other} is a mask of the same axes")

    def _output(
        self, name: str, table: OutputTable, axes: tuple[str, ...], inputs: Mapping[str, InputTable]
    ) -> TensorSpec:
        where, layout = f"outputs.{name}", DENSE
        if table.meaning == "attention":
            layout = self._layout(where, table, inputs)
            self._check_weights(where, table)
        else:
            keys = ("layer", "layout", *(key for keys in LAYOUT_KEYS.values() for key in keys))
            foreign = dict.fromkeys(key for key in keys if key in table.model_fields_set)
            self.faults += [f"{where}.{key}: only attention has one" for key in foreign]
        words = table.axes[:-1] if layout.kind in _COUNTED else table.axes
        self.faults += [
            f"{where}.axes: {axis}: an axis of no input ({', '.join(axes)})"
            for axis in words[1:]
            if isinstance(axis, str) and axis not in (*axes, _BATCH)
        ]
        return TensorSpec(
            name=name, dtype=table.dtype, axes=table.axes, meaning=table.meaning, layer=table.layer, layout=layout
        )

    def _layout(self, where: str, table: OutputTable, inputs: Mapping[str, InputTable]) -> LayoutSpec:
        needed = LAYOUT_KEYS[table.layout]
        given = [key for key in ("offset", "stride", "block", "tail", "index") if getattr(table, key) is not None]
        self.faults += [f"{where}.{key}: layout {table.layout}: is needed" for key in needed if key not in given]
        self.faults += [f"{where}.{key}: layout {table.layout} has none" for key in given if key not in needed]
        if "index" in needed and table.index is not None:
            of = inputs.get(table.index)
            if of is None or of.meaning != "index":
                names = [name for name, spec in inputs.items() if spec.meaning == "index"]
                self.faults.append(f"{where}.index: an input that means index is needed {names}, got {table.index!r}")
        values = {key: getattr(table, key) for key in given if key in needed}
        return LayoutSpec(kind=table.layout, **values)

    def _check_weights(self, where: str, table: OutputTable) -> None:
        axes, has_right_axes = table.axes, len(table.axes) in (3, 4)
        if not has_right_axes or (len(axes) == 4 and not isinstance(axes[1], int)):
            self.faults.append(
                f"{where}.axes: attention is [batch, queries, keys] or [batch, heads, queries, keys] with a number of "
                f"heads, got {told(list(axes))}"
            )
        if table.dtype not in FLOATS:
            self.faults.append(f"{where}.dtype: attention: {either(FLOATS)} needed, got {table.dtype!r}")
        if has_right_axes and table.layout in _COUNTED:
            self._check_columns(where, table)
        if has_right_axes and table.layout == "block" and table.block is not None and axes[-1] != table.block:
            self.faults.append(f"{where}.axes: layout block: the last axis is {table.block}, got {told(axes[-1])}")
        if has_right_axes and table.layout == "band" and not isinstance(axes[-1], int):
            self.faults.append(f"{where}.axes: layout band: the last axis is a number, got {told(axes[-1])}")

    def _check_columns(self, where: str, table: OutputTable) -> None:
        """The columns of strides and summaries follow from the number of queries: a word, or a number as that is."""
        queries, columns = table.axes[-2:]
        if isinstance(queries, str):
            if not isinstance(columns, str):
                self.faults.append(f"{where}.axes: layout {table.layout}: the last axis is a word, got {columns}")
            return
        is_strided = table.layout == "strided"
        step, each = (table.stride, 1) if is_strided else (table.block, table.tail)
        if step and each and columns != (needed := -(-queries // step) * each):
            self.faults.append(
                f"{where}.axes: layout {table.layout}: {queries} queries have {needed} columns, got {told(columns)}"
            )

    def _check_attention(self, outputs: tuple[TensorSpec, ...]) -> None:
        """One number of heads, one pair of axes, layers from 0 on: what a reply and a proof of all layers need."""
        weights = [spec for spec in outputs if spec.meaning == "attention" and len(spec.axes) in (3, 4)]
        layers = sorted({spec.layer for spec in weights})
        if layers != list(range(len(layers))):
            self.faults.append(f"outputs: layers of attention count from 0, got {layers}")
        self.faults += _shared_layers(weights)
        if len(heads := {heads_of(spec) for spec in weights}) > 1:
            self.faults.append(f"outputs: attention has one number of heads, got {sorted(heads)}")
        dense = {spec.axes[-2:] for spec in weights if spec.layout == DENSE}
        sparse = [spec for spec in weights if spec.layout.kind not in ("dense", "global_queries")]
        pairs = dense | {(spec.axes[-2], spec.axes[-2]) for spec in sparse}
        if len(pairs) > 1:
            told = " and ".join(sorted(f"{queries} × {keys}" for queries, keys in pairs))
            self.faults.append(f"outputs: attention is over one pair of axes, got {told}")
        if weights and not pairs:
            self.faults.append("outputs: layout global_queries: it belongs to a layer with weights of every position")

    def _max_sizes(self, raw: Any, axes: tuple[str, ...]) -> dict[str, int]:
        if not isinstance(raw, dict):
            self.faults.append(f"max_sizes: a table is needed, got {told(raw)}")
            return dict.fromkeys(axes, DEFAULT_MAX_SIZE)
        for axis, size in raw.items():
            if axis not in axes:
                self.faults.append(f"max_sizes.{axis}: no axis of an input{nearest(axis, axes)}")
            elif type(size) is not int or size < 2:
                self.faults.append(f"max_sizes.{axis}: a size of at least 2 is needed, got {told(size)}")
        return {axis: raw[axis] if type(raw.get(axis)) is int else DEFAULT_MAX_SIZE for axis in axes}


def _shared_layers(weights: Sequence[TensorSpec]) -> Iterator[str]:
    """Outputs that say twice what one layer's weights are: a layer is one dense matrix, or parts that differ."""
    seen: dict[int, list[TensorSpec]] = {}
    for spec in weights:
        others = seen.setdefault(spec.layer, [])
        for other in others:
            if spec.layout == other.layout or DENSE in (spec.layout, other.layout):
                layouts = " and ".join(dict.fromkeys((other.layout.kind, spec.layout.kind)))
                yield f"outputs.{spec.name}: outputs.{other.name} is layer {spec.layer} too ({layouts}): give `layer`"
                break
        others.append(spec)


def _is_mask(axes: tuple[str | int, ...]) -> bool:
    return len(axes) in (2, 3) and all(isinstance(axis, str) for axis in axes)
