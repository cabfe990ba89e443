"""Parquet, in and out, by pyarrow (the extra `parquet`): the only module that imports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from qkv.files.records import FileError, Record, Source, column_places, read
from service.runners.base import Array

INDEX, EMBEDDING = "index", "embedding"

_READ_ROWS = 1024
# Of a row group that is written.
_GROUP_ROWS = 8192


def read_parquet(source: Source) -> Iterator[Record]:
    """Every row is a record: its texts are columns of strings, and what is kept is strings, numbers or booleans."""
    with closing(_open(source)) as file:
        _check_columns(source, file.schema_arrow)
        wanted = list(dict.fromkeys((source.text_field, *([source.pair] if source.pair else []), *source.keep)))
        number = 0
        for batch in file.iter_batches(batch_size=_READ_ROWS, columns=wanted):
            columns = {name: _values(source, batch.column(name), number) for name in wanted}
            for index in range(batch.num_rows):
                number += 1
                pair = None if source.pair is None else _text(source, columns, source.pair, index, number)
                kept = tuple(columns[name][index] for name in source.keep)
                yield Record(number, _text(source, columns, source.text_field, index, number), pair, kept)


def write_parquet(path: Path, vectors: Array, source: Source, metadata: Mapping[str, str]) -> None:
    """Write `index`, the kept fields of the source, and `embedding`, a list of fixed size.

    vectors: `[texts, dim]` float32. metadata: goes into the file's own.
    """
    dim = vectors.shape[1]
    kept = [pa.field(name, kind) for name, kind in _kept_types(source).items()]
    embedding = pa.field(EMBEDDING, pa.list_(pa.float32(), dim))
    schema = pa.schema([pa.field(INDEX, pa.int64()), *kept, embedding], metadata=dict(metadata))
    records = read(source) if source.keep else None
    # The values of vectors are all different: a dictionary of them would only be tried and dropped.
    with pq.ParquetWriter(path, schema, use_dictionary=list(source.keep)) as writer:
        for start in range(0, len(vectors), _GROUP_ROWS):
            rows = vectors[start : start + _GROUP_ROWS]
            columns = [pa.array(range(start, start + len(rows)), pa.int64())]
            if records is not None:
                group = [record.kept for record in islice(records, len(rows))]
                values = zip(*group, strict=True)
                columns += [_array(source, field, column) for field, column in zip(kept, values, strict=True)]
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), dim))
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _open(source: Source) -> Any:
    try:
        return pq.ParquetFile(source.path, memory_map=True)
    except pa.ArrowInvalid as error:
        raise FileError(f"{source.path}: not Parquet: {error}") from None


def _check_columns(source: Source, schema: Any) -> None:
    column_places(source, schema.names, 1)
    for name in (source.text_field, source.pair or source.text_field):
        if not _is_text(kind := schema.field(name).type):
            raise FileError(f"{source.path}: column {name!r}: strings are expected, it is {kind}")
    for name in source.keep:
        kind = schema.field(name).type
        if not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise FileError(f"{source.path}: column {name!r}: strings, numbers and booleans are kept, it is {kind}")


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _values(source: Source, column: Any, before: int) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raise source.error(before + 1, f"not UTF-8 in this row or one of the {len(column) - 1} after it") from None
    return values


def _text(source: Source, columns: Mapping[str, list[Any]], name: str, index: int, number: int) -> str:
    value = columns[name][index]
    if value is None:
        raise source.error(number, f"column {name!r}: a string is expected, got null")
    return str(value)


def _kept_types(source: Source) -> dict[str, Any]:
    """Columns of Parquet keep their types; fields of other files are strings."""
    if source.path.suffix != ".parquet":
        return dict.fromkeys(source.keep, pa.string())
    with closing(_open(source)) as file:
        schema = file.schema_arrow
        return {
            name: pa.string() if _is_text(schema.field(name).type) else schema.field(name).type for name in source.keep
        }


def _array(source: Source, field: Any, values: tuple[Any, ...]) -> Any:
    if source.path.suffix == ".parquet":
        return pa.array(values, field.type)
    return pa.array([_as_text(value) for value in values], field.type)


def _as_text(value: Any) -> str | None:
    """A string as it is, another value of JSON as its JSON."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
