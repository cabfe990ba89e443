"""What is read out of a file of texts, and what is refused by its line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qkv.files.records import FileError, Record, Source, check_source, read


def source(path: Path, content: bytes, **options: Any) -> Source:
    path.write_bytes(content)
    return Source(path, **options)


def texts(records: Iterator[Record]) -> list[str]:
    return [record.text for record in records]


def refusal(found: Source) -> str:
    with pytest.raises(FileError) as error:
        list(read(found))
    return str(error.value).removeprefix(f"{found.path}: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\n\n three \n\n", ["one", "", " three ", ""]),
        (b"\xef\xbb\xbfone\r\ntwo\r\n", ["one", "two"]),
        ("a\u2028b\x0bc\x85d\re\n\ufefff\n".encode(), ["a\u2028b\x0bc\x85d\re", "\ufefff"]),
        (b"\xef\xbb\xbf", [""]),
    ],
    ids=["empty", "lines", "no end", "blank", "BOM and CRLF", "no ends of lines", "BOM alone"],
)
def test_every_line_is_a_text(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    found = list(read(source(tmp_path / "a.txt", content)))
    assert [record.text for record in found] == expected
    assert [record.number for record in found] == list(range(1, len(expected) + 1))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"good\nb\xe4d\n", "line 2: not UTF-8 at byte 2 of the line"),
        ("good\n".encode("utf-16"), "line 1: not UTF-8 at byte 1 of the line: the file is UTF-16"),
        (b"good\n" + b"x" * 100 + b"\n", "line 2: 64 bytes allowed (QKV_MAX_BODY_BYTES), it has more"),
    ],
    ids=["Latin-1", "UTF-16", "long"],
)
def test_lines_that_are_no_text_are_refused(tmp_path: Path, content: bytes, told: str) -> None:
    assert refusal(source(tmp_path / "a.txt", content, max_bytes=64)) == told


def test_an_endless_line_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(2**40)  # one line, of nothing on the disk
    assert refusal(Source(tmp_path / "a.txt")).startswith("line 1: 16777216 bytes allowed")


def test_fields_of_jsonl(tmp_path: Path) -> None:
    rows = [{"id": 7, "body": "one\ntwo", "n": None}, {"body": "ü", "tags": ["a"]}]
    content = "\r\n".join(map(json.dumps, rows)).encode()
    found = list(read(source(tmp_path / "a.jsonl", content, field="body", keep=("id", "tags"))))
    assert found == [Record(1, "one\ntwo", None, (7, None)), Record(2, "ü", None, (None, ["a"]))]


def test_pairs(tmp_path: Path) -> None:
    found = source(tmp_path / "a.ndjson", b'{"text": "a", "answer": "b"}', pair="answer")
    assert list(read(found)) == [Record(1, "a", "b")]
    found = source(tmp_path / "a.csv", b"answer,text\nb,a\n", pair="answer")
    assert list(read(found)) == [Record(2, "a", "b")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{text}", "not JSON: unexpected character"),
        (b"", "blank, not an object"),
        (b"[1]", "an object is expected, got a list"),
        (b'{"body": "a", "title": "b"}', "no field 'text', it has 'body', 'title'"),
        (b'{"text": 5}', "field 'text': a string is expected, got a number"),
        (b'{"text": null}', "field 'text': a string is expected, got null"),
        (rb'{"text": "\ud800"}', "not JSON: "),
    ],
)
def test_a_line_of_jsonl_that_holds_no_text_is_refused(tmp_path: Path, line: bytes, told: str) -> None:
    content = b'{"text": "good"}\n' + line + b'\n{"text": "good"}\n'
    assert refusal(source(tmp_path / "a.jsonl", content)).startswith(f"line 2: {told}")


def test_csv_of_every_kind_of_field(tmp_path: Path) -> None:
    rows = [["1", 'said "no"', ""], ["2", "two\r\nlines", "x"], ["3", "a,b", "y"], ["4", "", "z"]]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text", "more"], *rows])
    found = list(read(Source(tmp_path / "a.csv", keep=("id",))))
    assert [(record.kept[0], record.text) for record in found] == [(row[0], row[1]) for row in rows]
    assert [record.number for record in found] == [2, 3, 5, 6]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "line 1: a line with the names of the columns is expected"),
        (b"id,body\n1,a\n", "line 1: no column 'text' among 'id', 'body'"),
        (b"text,text\na,b\n", "line 1: 2 columns 'text' among 'text', 'text'"),
        (b'text,n\n"a\nb",1\nc\n', "line 4: 2 fields expected, got 1"),
        (b"text,n\na,1,2\n", "line 2: 2 fields expected, got 3"),
        (b'text,n\na,1\n"b,2\n', "line 3: not CSV: unexpected end of data"),
        (b'text,n\n"a"b,1\n', "line 2: not CSV: "),
        (b'text,n\n"' + b"x\n" * 40, "line 2: not CSV: field larger than field limit (64)"),
    ],
)
def test_csv_that_is_not_whole_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    before = csv.field_size_limit()
    assert refusal(source(tmp_path / "a.csv", content, max_bytes=64)).startswith(told)
    assert csv.field_size_limit() == before, "it is of the whole process"


def table(path: Path, columns: Mapping[str, Any], **options: Any) -> Source:
    pq.write_table(pa.table(dict(columns)), path, row_group_size=3)
    return Source(path, **options)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_columns_of_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    wanted = [f"text {number % 4}" for number in range(10)]
    columns = {"id": pa.array(range(10), pa.int32()), "text": pa.array(wanted).cast(kind), "other": [[1]] * 10}
    found = list(read(table(tmp_path / "a.parquet", columns, keep=("id",))))
    assert [(record.number, record.text, record.kept) for record in found] == [
        (number + 1, text, (number,)) for number, text in enumerate(wanted)
    ]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"text": ["a", "b", "c", None]}, "row 4: column 'text': a string is expected, got null"),
        ({"text": [1, 2]}, "column 'text': strings are expected, it is int64"),
        ({"body": ["a"]}, "row 1: no column 'text' among 'body', 'when'"),
        ({"text": ["a"]}, "column 'when': strings, numbers and booleans are kept, it is list<"),
    ],
)
def test_columns_of_parquet_that_hold_no_text_are_refused(
    tmp_path: Path, columns: Mapping[str, Any], told: str
) -> None:
    rows = len(next(iter(columns.values())))
    keep = ("when",) if "list" in told else ()
    assert refusal(table(tmp_path / "a.parquet", {**columns, "when": [[1]] * rows}, keep=keep)).startswith(told)


def test_what_is_not_parquet_or_not_utf8_is_refused(tmp_path: Path) -> None:
    assert refusal(source(tmp_path / "a.parquet", b"text\na\n")).startswith("not Parquet: ")
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    assert "not UTF-8" in refusal(table(tmp_path / "b.parquet", {"text": bad}))


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("a.tsv", {}, "texts come as .txt, .jsonl, .ndjson, .csv, .parquet, got .tsv"),
        ("a", {}, "got no suffix"),
        ("missing.txt", {}, "no such file"),
        ("dir.txt", {}, "not a plain file"),
        ("a.txt", {"field": "text"}, "a plain text file has no fields"),
        ("a.txt", {"keep": ("id",)}, "a plain text file has no fields"),
    ],
)
def test_what_is_no_file_of_texts_is_refused(tmp_path: Path, name: str, options: Any, told: str) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "dir.txt").mkdir()
    with pytest.raises(FileError, match=told):
        check_source(Source(tmp_path / name, **options))
