"""What a run has written so far, safe on the disk, so that the next one goes on from there, whatever ended this one.

`OUT.partial` grows by whole chunks; `OUT.partial.json` says what was asked, how much of the other file counts, and of
which texts it is: those that are still to come may be mended, or become more. `OUT` is only ever whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from qkv.files.records import FileError, Record, Source, read

Asked = Mapping[str, Any]

# May be changed as long as no text was cut: then none was too long.
_TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class Done:
    """texts: how many are written. bytes: of the file, header included. cut: how many of the texts were too long.

    texts_sha256: of those texts and what is kept of them.
    """

    texts: int = 0
    bytes: int = 0
    cut: int = 0
    texts_sha256: str = ""


class Store:
    """One output that is being written. Used by one thread at a time; held against other processes."""

    def __init__(self, out: Path, asked: Asked, source: Source, *, header: bytes, force: bool) -> None:
        """Begin, or go on from what an earlier run of the same has left.

        force: replace `out`, and what a run of something else has left. Raises FileError saying what is in the way.
        """
        self.out = out
        self.partial = partial_of(out)
        self._state = _state_of(out)
        self._asked = dict(asked)
        self._source = source
        self._header = header
        self._texts = hashlib.sha256()
        self._file = _open_locked(self.partial)
        try:
            self.done = self._resume(force=force) or self._begin()
        except BaseException:
            self._file.close()
            raise

    def append(self, chunk: bytes, records: Sequence[Record], *, num_cut: int) -> None:
        """Add what was made of these records; once this returns, nothing short of the disk's end can take it back."""
        self._file.write(chunk)
        self._flush()
        _take_in(self._texts, records)
        done = self.done
        texts, size, cut = done.texts + len(records), done.bytes + len(chunk), done.cut + num_cut
        self._save(Done(texts, size, cut, self._texts.hexdigest()))

    def finish(self, make: Callable[[Path, Path], None] | None) -> None:
        """Put the whole output in its place. make: makes it of the partial file, in another one; None = it is it."""
        if make is None:
            self.partial.replace(self.out)
        else:
            made = self.partial.with_name(self.partial.name + ".out")
            make(self.partial, made)
            _sync(made)
            made.replace(self.out)
            self.partial.unlink()
        self._state.unlink()
        self._file.close()

    def close(self) -> None:
        """Leave what is there to the next run, if there is anything."""
        if not self.done.texts and not self._file.closed:
            self.partial.unlink()
            self._state.unlink()
        self._file.close()

    def _resume(self, *, force: bool) -> Done | None:
        """What an earlier run has left of this; None when there is nothing of use."""
        if not (size := os.fstat(self._file.fileno()).st_size):
            return None
        left = _left(self._state)
        faults = ["nothing says what it is of"] if left is None else self._faults(*left)
        if faults and not force:
            raise FileError(
                f"{self.partial} is there, of another run: {'; '.join(faults)}. "
                "What was asked then goes on with it, --force drops it"
            )
        if left is None or faults or size < left[1].bytes:
            return None
        done = left[1]
        self._file.truncate(done.bytes)  # what was being written when it ended
        self._file.write(self._header)  # which says how many texts there will be: perhaps more than there were
        self._flush()
        self._file.seek(done.bytes)
        self._save(done)
        return done

    def _faults(self, before: Asked, done: Done) -> list[str]:
        """A line for everything that was otherwise."""
        faults = _differences(before, done, self._asked)
        if not faults and done.texts:
            self._texts = hashlib.sha256()
            _take_in(self._texts, islice(read(self._source), done.texts))
            if self._texts.hexdigest() != done.texts_sha256:
                faults.append(f"the first {done.texts:,} texts, which it holds, have changed")
        return faults

    def _begin(self) -> Done:
        self._texts = hashlib.sha256()
        self._file.truncate(0)
        # Before the header: a file that says less than this is begun anew.
        self._save(done := Done(bytes=len(self._header)))
        self._file.write(self._header)
        self._flush()
        return done

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _save(self, done: Done) -> None:
        new = self._state.with_name(self._state.name + ".new")
        new.write_bytes(orjson.dumps({"asked": self._asked, "done": asdict(done)}))
        _sync(new)
        new.replace(self._state)
        self.done = done


def partial_of(out: Path) -> Path:
    """Where an output grows."""
    return out.with_name(out.name + ".partial")


def _state_of(out: Path) -> Path:
    return out.with_name(out.name + ".partial.json")


def _left(state: Path) -> tuple[Asked, Done] | None:
    """What an earlier run was asked, and how far it has come; None where nothing says so."""
    try:
        content = orjson.loads(state.read_bytes())
        return content["asked"], Done(**content["done"])
    except (FileNotFoundError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _open_locked(path: Path) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise FileError(f"{path}: another process is writing it") from None
    return file


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _differences(before: Asked, done: Done, now: Asked) -> list[str]:
    """A line for everything that was asked otherwise."""
    names = [name for name in now if before.get(name) != now[name]]
    if not done.cut and _TRUNCATE in names:
        names.remove(_TRUNCATE)
    return [f"{name} was {_told(before.get(name))}, now it is {_told(now[name])}" for name in names]


def _take_in(digest: hashlib._Hash, records: Iterable[Record]) -> None:
    for record in records:
        digest.update(orjson.dumps([record.text, record.pair, record.kept]))


def _told(value: Any) -> str:
    return "not given" if value is None else str(value)
