"""Texts out of a file, one after the other, each with its line: txt, jsonl, csv; `qkv.files.parquet` has the fourth.

Only one record is in memory at a time. Whatever is not as it must be is refused by its line, and never repeated.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from service.errors import StartupError

DEFAULT_FIELD = "text"

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_MAX_LISTED = 10
_JSON_TYPES: Mapping[type, str] = {
    bool: "a boolean", int: "a number", float: "a number", str: "a string",
    list: "a list", dict: "an object", type(None): "null",
}  # fmt: skip


class FileError(StartupError):
    """A file that cannot be read or written as it was asked for: the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Record:
    """One text of a file. number: of its line (or row), from 1. kept: values of the fields to keep, in their order."""

    number: int
    text: str
    pair: str | None = None
    kept: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A file of texts, and which of its fields are wanted.

    field: None = the usual one, `text`; a plain text file has no fields. pair: the field of each text's second one.
    keep: fields that go with the answer. max_bytes: the longest line.
    """

    path: Path
    field: str | None = None
    pair: str | None = None
    keep: tuple[str, ...] = ()
    max_bytes: int = 2**24

    @property
    def text_field(self) -> str:
        return self.field or DEFAULT_FIELD

    @property
    def unit(self) -> str:
        """What a record is counted by."""
        return "row" if self.path.suffix == ".parquet" else "line"

    def error(self, number: int, message: str) -> FileError:
        """The refusal of one record."""
        return FileError(f"{self.path}: {self.unit} {number}: {message}")


def read(source: Source) -> Iterator[Record]:
    """The records of a file, in order. Raises FileError at the first one that is not as it must be."""
    if source.path.suffix == ".parquet":
        from qkv.files.parquet import read_parquet

        return read_parquet(source)
    return _READERS[source.path.suffix](source)


def check_source(source: Source) -> None:
    """Refuse what is no file of a known kind, and fields where there are none."""
    suffix = source.path.suffix
    if suffix not in (*_READERS, ".parquet"):
        raise FileError(
            f"{source.path}: texts come as {', '.join((*_READERS, '.parquet'))}, got {suffix or 'no suffix'}"
        )
    if not source.path.exists():
        raise FileError(f"{source.path}: no such file")
    if not source.path.is_file():  # it is read more than once
        raise FileError(f"{source.path}: not a plain file")
    if suffix == ".txt" and (source.field or source.pair or source.keep):
        raise FileError(f"{source.path}: a plain text file has no fields: each line is a text")


def _read_txt(source: Source) -> Iterator[Record]:
    """Every line is a text, a blank one the empty text."""
    for number, line in _lines(source):
        yield Record(number, line.removesuffix("\n").removesuffix("\r"))


def _read_jsonl(source: Source) -> Iterator[Record]:
    for number, line in _lines(source):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise source.error(number, f"not JSON: {error.msg}" if line.strip() else "blank, not an object") from None
        if not isinstance(row, dict):
            raise source.error(number, f"an object is expected, got {_JSON_TYPES[type(row)]}")
        pair = None if source.pair is None else _string(source, number, row, source.pair)
        kept = tuple(row.get(name) for name in source.keep)
        yield Record(number, _string(source, number, row, source.text_field), pair, kept)


def _string(source: Source, number: int, row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        raise source.error(number, f"no field {name!r}, it has {listed(list(row))}")
    value = row[name]
    if not isinstance(value, str):
        raise source.error(number, f"field {name!r}: a string is expected, got {_JSON_TYPES[type(value)]}")
    return value


def _read_csv(source: Source) -> Iterator[Record]:
    """The first line names the columns; blank lines between records are none."""
    with closing(_csv_rows(source)) as rows:
        number, header = next(rows, (1, []))
        if not header:
            raise source.error(1, "a line with the names of the columns is expected")
        text, pair, *kept = column_places(source, header, number)
        for number, row in rows:
            if len(row) != len(header):
                raise source.error(number, f"{len(header)} fields expected, got {len(row)}")
            second = None if source.pair is None else row[pair]
            yield Record(number, row[text], second, tuple(row[place] for place in kept))


def _csv_rows(source: Source) -> Generator[tuple[int, list[str]], None, None]:
    """Each record with the line that it begins on."""
    before = csv.field_size_limit(source.max_bytes)  # of the whole process
    rows = csv.reader((line for _, line in _lines(source)), strict=True)
    try:
        while True:
            first = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                raise source.error(first, f"not CSV: {error}") from None
            if row:
                yield first, row
    finally:
        csv.field_size_limit(before)


def column_places(source: Source, columns: Sequence[str], number: int) -> list[int]:
    """Where the text, its pair and the fields to keep are among the columns; the pair is where the text is if unasked.

    Raises FileError for one that is not there, or twice.
    """
    for name in (wanted := [source.text_field, source.pair or source.text_field, *source.keep]):
        if (count := columns.count(name)) != 1:
            found = "no column" if not count else f"{count} columns"
            raise source.error(number, f"{found} {name!r} among {listed(columns)}")
    return [columns.index(name) for name in wanted]


def listed(names: Sequence[str]) -> str:
    """Names for a message: not more than anybody reads."""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(map(repr, names[:_MAX_LISTED])) + more if names else "none"


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    """Lines with their ends, which are line feeds alone: what else Unicode calls a line end is part of a text."""
    limit = source.max_bytes
    with source.path.open("rb") as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                raise source.error(number, f"{limit} bytes allowed (QKV_MAX_BODY_BYTES), it has more")
            if number == 1:
                line = line.removeprefix(_BOM)
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                hint = ": the file is UTF-16" if number == 1 and line.startswith(_UTF16) else ""
                raise source.error(number, f"not UTF-8 at byte {error.start + 1} of the line{hint}") from None
            yield number, text


_READERS: Mapping[str, Callable[[Source], Iterator[Record]]] = {
    ".txt": _read_txt,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_csv,
}
