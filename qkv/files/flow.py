"""Texts of a file through the engine: read in chunks, one runs while the next is tokenised and the last one written.

A chunk is a fixed part of the file, whoever reads it and whenever: what an interrupted run has not finished, the next
one computes as the first would have.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from qkv.files.outputs import Chunk, Form
from qkv.files.records import FileError, Record, Source, read
from qkv.files.store import Store
from service.engine.engine import Engine
from service.engine.request import EncodeRequest, EncodeResult, Text
from service.errors import BackendError, RequestError

# One runs, one is made ready: more would only take memory.
_IN_FLIGHT = 2
_PARAM = "input"
_INDEX = re.compile(rf"{_PARAM}\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Window:
    """Texts that are sorted by length together, at most: more of them pad less, and take more memory."""

    max_texts: int
    max_chars: int


# Of answers that are as long as their texts there are fewer at a time.
VECTORS, OTHERS = Window(4096, 2**20), Window(256, 2**16)


@dataclass(frozen=True, slots=True)
class Job:
    """What is done with a file. request: of every chunk, but for its inputs. num_texts: in the whole file."""

    engine: Engine
    request: EncodeRequest
    source: Source
    form: Form
    store: Store
    num_texts: int
    window: Window


async def run(job: Job) -> None:
    """Encode and write what is not written yet.

    Raises FileError naming the line whose text is at fault, with all before its chunk written. Cancelling loses the
    chunks in flight.
    """
    chunks = split(islice(read(job.source), job.store.done.texts, job.num_texts), job.window)
    waiting: deque[tuple[list[Record], asyncio.Task[EncodeResult]]] = deque()
    try:
        while (records := await asyncio.to_thread(next, chunks, None)) is not None:
            waiting.append((records, asyncio.create_task(_encode(job, records))))
            if len(waiting) == _IN_FLIGHT:
                await _write(job, *waiting[0])
                waiting.popleft()
        for records, task in waiting:
            await _write(job, records, task)
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


def split(records: Iterator[Record], window: Window) -> Iterator[list[Record]]:
    """Chunks in order: as many texts as the window takes, at least one."""
    chunk: list[Record] = []
    num_chars = 0
    for record in records:
        size = len(record.text) + len(record.pair or "")
        if chunk and (len(chunk) == window.max_texts or num_chars + size > window.max_chars):
            yield chunk
            chunk, num_chars = [], 0
        chunk.append(record)
        num_chars += size
    if chunk:
        yield chunk


async def _encode(job: Job, records: Sequence[Record]) -> EncodeResult:
    inputs = [Text(record.text, record.pair) for record in records]
    try:
        return await job.engine.encode(replace(job.request, inputs=inputs, param=_PARAM))
    except RequestError as error:
        raise _of_record(job.source, records, error) from None
    except BackendError as error:
        if len(records) == 1:
            raise job.source.error(records[0].number, error.message) from None
        # Which of them it was, a failed request does not tell.
        middle = len(records) // 2
        await _encode(job, records[:middle])
        await _encode(job, records[middle:])
        raise


def _of_record(source: Source, records: Sequence[Record], error: RequestError) -> FileError:
    """A refusal in the words of the command: which line, and what its options are called."""
    message = error.message.replace("`truncate`", "--truncate")
    if (match := _INDEX.fullmatch(error.param or "")) is None:
        return FileError(f"{source.path}: {message}")
    return source.error(records[int(match[1])].number, message.removeprefix(f"{error.param}: "))


async def _write(job: Job, records: list[Record], task: asyncio.Task[EncodeResult]) -> None:
    chunk = Chunk(job.store.done.texts, records, await task)

    def write() -> None:
        job.store.append(job.form.chunk(chunk, job.source), records, num_cut=chunk.num_cut)

    writing = asyncio.create_task(asyncio.to_thread(write))
    try:
        await asyncio.shield(writing)
    finally:
        await asyncio.wait([writing])  # cancelled too: nobody closes the file under it
