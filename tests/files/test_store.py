"""What an earlier run has left, and which later ones go on from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qkv.files.records import FileError, Record, Source, read
from qkv.files.store import Store

ASKED = {"bundle": "b" * 64, "truncate": "error", "dimensions": None}
HEADER = b"3 texts\n"

Open = Callable[..., Store]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Three texts."""
    path = tmp_path / "in.txt"
    path.write_text("one\ntwo\nthree\n")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.bin"


@pytest.fixture
def open_store(lines: Path, out: Path) -> Open:
    """`open_store(dimensions=…, force=…, header=…)`: of the three texts."""

    def open_one(*, force: bool = False, header: bytes = HEADER, **asked: Any) -> Store:
        return Store(out, ASKED | asked, Source(lines), header=header, force=force)

    return open_one


def records(lines: Path) -> list[Record]:
    return list(read(Source(lines)))


def left(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith(out.name))


def num_done(open_store: Open, **options: Any) -> int:
    """How many texts such a run need not encode."""
    with closing(open_store(**options)) as store:
        return store.done.texts


def begin(open_store: Open, lines: Path, *, num_cut: int = 0) -> None:
    """A run that was ended after its first two texts, while it wrote the third."""
    store = open_store()
    store.append(b"1;2;", records(lines)[:2], num_cut=num_cut)
    store._file.write(b"3")
    store.close()


def test_a_whole_run_leaves_its_output_alone(open_store: Open, lines: Path, out: Path) -> None:
    store = open_store()
    store.append(b"1;2;", records(lines)[:2], num_cut=0)
    assert left(out) == ["out.bin.partial", "out.bin.partial.json"]
    store.append(b"3;", records(lines)[2:], num_cut=1)
    store.finish(None)
    assert left(out) == ["out.bin"]
    assert out.read_bytes() == HEADER + b"1;2;3;"
    assert (store.done.texts, store.done.cut) == (3, 1)


def test_an_output_that_is_made_of_the_partial_file(open_store: Open, lines: Path, out: Path) -> None:
    store = open_store()
    store.append(b"123", records(lines), num_cut=0)

    def reverse(partial: Path, made: Path) -> None:
        made.write_bytes(partial.read_bytes()[::-1])

    store.finish(reverse)
    assert left(out) == ["out.bin"]
    assert out.read_bytes() == b"321" + HEADER[::-1]


def test_what_was_written_is_gone_on_with_and_what_was_being_written_is_dropped(
    open_store: Open, lines: Path, out: Path
) -> None:
    begin(open_store, lines)
    store = open_store()
    assert store.done.texts == 2
    store.append(b"3;", records(lines)[2:], num_cut=0)
    store.finish(None)
    assert out.read_bytes() == HEADER + b"1;2;3;"


def test_texts_to_come_may_change_and_the_header_says_how_many_there_are(
    open_store: Open, lines: Path, out: Path
) -> None:
    begin(open_store, lines)
    lines.write_text("one\ntwo\nthird\nfourth\n")
    store = open_store(header=b"4 texts\n")
    assert store.done.texts == 2
    store.append(b"3;4;", records(lines)[2:], num_cut=0)
    store.finish(None)
    assert out.read_bytes() == b"4 texts\n1;2;3;4;"


@pytest.mark.parametrize("content", ["one\n2\nthree\n", "two\none\nthree\n", "one\n"], ids=["other", "moved", "fewer"])
def test_texts_that_are_written_must_be_the_same(open_store: Open, lines: Path, out: Path, content: str) -> None:
    begin(open_store, lines)
    before = (out.parent / "out.bin.partial").read_bytes()
    lines.write_text(content)
    with pytest.raises(FileError, match="the first 2 texts, which it holds, have changed"):
        open_store()
    assert (out.parent / "out.bin.partial").read_bytes() == before
    assert num_done(open_store, force=True) == 0


def test_what_was_asked_otherwise_is_named(open_store: Open, lines: Path) -> None:
    begin(open_store, lines)
    with pytest.raises(FileError, match="of another run: dimensions was not given, now it is 2") as error:
        open_store(dimensions=2)
    assert "--force drops it" in str(error.value)
    assert num_done(open_store) == 2, "a refusal changes nothing"
    assert num_done(open_store, force=True) == 2, "what fits is never dropped"
    assert num_done(open_store, dimensions=2, force=True) == 0


def test_truncate_may_change_until_a_text_was_cut(open_store: Open, lines: Path) -> None:
    begin(open_store, lines)
    assert num_done(open_store, truncate="right") == 2
    with closing(open_store(truncate="right")) as store:
        store.append(b"3;", records(lines)[2:], num_cut=1)
    with pytest.raises(FileError, match="truncate was right, now it is left"):
        open_store(truncate="left")


def test_a_run_that_wrote_nothing_leaves_nothing(open_store: Open, out: Path) -> None:
    open_store().close()
    assert left(out) == []


@pytest.mark.parametrize("size", [0, 3, len(HEADER) + 1])
def test_a_file_that_is_shorter_than_is_said_of_it_is_begun_anew(
    open_store: Open, lines: Path, out: Path, size: int
) -> None:
    begin(open_store, lines)
    with (out.parent / "out.bin.partial").open("r+b") as file:
        file.truncate(size)
    store = open_store()
    assert store.done.texts == 0
    store.append(b"1;2;3;", records(lines), num_cut=0)
    store.finish(None)
    assert out.read_bytes() == HEADER + b"1;2;3;"


@pytest.mark.parametrize("state", [None, "", "{}", json.dumps({"asked": {}, "done": {"lines": 1}})])
def test_a_file_that_nothing_is_said_of_is_dropped_by_force_alone(
    open_store: Open, out: Path, state: str | None
) -> None:
    (out.parent / "out.bin.partial").write_text("somebody's")
    if state is not None:
        (out.parent / "out.bin.partial.json").write_text(state)
    with pytest.raises(FileError, match="nothing says what it is of"):
        open_store()
    assert (out.parent / "out.bin.partial").read_text() == "somebody's"
    assert num_done(open_store, force=True) == 0


def test_two_runs_do_not_write_one_output(open_store: Open, lines: Path) -> None:
    store = open_store()
    with pytest.raises(FileError, match="another process is writing it"):
        open_store(force=True)
    store.append(b"1;2;", records(lines)[:2], num_cut=0)
    store.close()
    assert num_done(open_store) == 2
