"""How answers are written: rows of float32 for npy and parquet, lines of JSON for jsonl."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkv.files.records import FileError, Record, Source
from service.engine.formats import dump, item_fields
from service.engine.ranking import class_fields
from service.engine.request import EncodeResult
from service.manifest import TextManifest
from service.runners.base import Array

# What the lines of jsonl say of their own, whatever the task.
_OWN_FIELDS = ("index", "embedding", "scores", "entities", "sparse", "outputs", "num_tokens", "truncated")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Answered texts that follow each other. first: the index of the first one, from 0."""

    first: int
    records: Sequence[Record]
    result: EncodeResult

    @property
    def num_cut(self) -> int:
        return sum(item.truncated for item in self.result.items)


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of output file. header: of (texts, dim). chunk: its bytes, for the source.

    make: makes the output of a partial file, in another one, for contents; None = the partial file is the output.
    """

    header: Callable[[int, int], bytes]
    chunk: Callable[[Chunk, Source], bytes]
    has_fields: bool = True
    only_vectors: bool = True
    make: Callable[[Contents, Path, Path], None] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What a whole output holds. metadata: of vectors."""

    source: Source
    num_texts: int
    dim: int
    metadata: Mapping[str, str]


def form_of(out: Path) -> Form:
    """The form of an output, by its suffix. Raises FileError."""
    form = _FORMS.get(out.suffix)
    if form is None:
        raise FileError(f"{out}: answers go to {', '.join(_FORMS)}, got {out.suffix or 'no suffix'}")
    return form


def check_output(out: Path, source: Source) -> None:
    """Refuse what no file of this form can hold, and fields that would hide each other. Raises FileError."""
    form = form_of(out)
    if source.keep and not form.has_fields:
        raise FileError(f"--keep: {out.suffix} holds vectors alone, in the order of the texts")
    own = ("index", "embedding") if out.suffix == ".parquet" else _OWN_FIELDS
    if taken := [name for name in source.keep if name in own]:
        raise FileError(f"--keep: {taken[0]!r} is what {out.suffix} calls something of its own")
    if twice := [name for name in source.keep if source.keep.count(name) > 1]:
        raise FileError(f"--keep: {twice[0]!r} is named twice")


def check_task(out: Path, manifest: TextManifest) -> None:
    """Refuse a task whose answers are no vectors, where only vectors go. Raises FileError."""
    if form_of(out).only_vectors and manifest.task != "embedding":
        raise FileError(
            f"{out}: `{manifest.name}` is a model for {manifest.task}, whose answers go to .jsonl; "
            f"{out.suffix} holds embeddings"
        )


def _vectors(chunk: Chunk, _source: Source) -> bytes:
    """-> [texts, dim] little-endian float32, row-major"""
    rows = [item.embedding for item in chunk.result.items if item.embedding is not None]
    return np.stack(rows).astype("<f4", copy=False).tobytes()


def _npy_header(num_texts: int, dim: int) -> bytes:
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (num_texts, dim)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def _lines(chunk: Chunk, source: Source) -> bytes:
    """One object a text: its index, what is kept of it, then what `/v1/encode` or `/v1/classify` says of it."""
    labels = chunk.result.labels
    lines = []
    for place, (record, item) in enumerate(zip(chunk.records, chunk.result.items, strict=True)):
        # Of token classifiers the classes come as entities, whose labels are in them.
        answer = item_fields(item) if item.classes is None else class_fields(item, labels)
        kept = dict(zip(source.keep, record.kept, strict=True))
        lines.append(dump({"index": chunk.first + place, **kept, **answer}) + b"\n")
    return b"".join(lines)


def _make_parquet(contents: Contents, partial: Path, made: Path) -> None:
    from qkv.files.parquet import write_parquet

    shape = (contents.num_texts, contents.dim)
    vectors: Array = np.memmap(partial, "<f4", "r", shape=shape) if contents.num_texts else np.empty(shape, "<f4")
    write_parquet(made, vectors, contents.source, contents.metadata)


def _no_header(_num_texts: int, _dim: int) -> bytes:
    return b""


_FORMS: Mapping[str, Form] = {
    ".npy": Form(_npy_header, _vectors, has_fields=False),
    ".jsonl": Form(_no_header, _lines, only_vectors=False),
    ".parquet": Form(_no_header, _vectors, make=_make_parquet),
}
