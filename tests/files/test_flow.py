"""The way of a file through the engine, over a fake model: order, chunks, faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.files import flow
from qkv.files.flow import Job, Window, run, split
from qkv.files.outputs import check_task, form_of
from qkv.files.records import FileError, Record, Source, read
from qkv.files.store import Store
from service.engine.engine import Engine
from service.engine.formats import native_json
from service.engine.host import Host
from service.engine.ranking import classify_json
from service.engine.request import EncodeRequest, Text
from service.engine.tasks import includes
from service.manifest import Task
from service.runners.base import Array, FakeRunner
from service.settings import Settings
from tests.fixtures.fakes import fake_bundle, fake_manifest, fake_runner

WINDOW = Window(max_texts=8, max_chars=40)


@given(st.lists(st.text(max_size=30)), st.integers(1, 10), st.integers(1, 60))
def test_chunks_are_full_and_go_on_anywhere(texts: list[str], max_texts: int, max_chars: int) -> None:
    window = Window(max_texts, max_chars)
    records = [Record(number, text) for number, text in enumerate(texts, start=1)]
    chunks = list(split(iter(records), window))
    assert [record for chunk in chunks for record in chunk] == records
    sizes = [sum(len(record.text) for record in chunk) for chunk in chunks]
    for chunk, size in zip(chunks, sizes, strict=True):
        assert len(chunk) == 1 or (len(chunk) <= max_texts and size <= max_chars)
    for chunk, size, after in zip(chunks, sizes, chunks[1:], strict=False):
        assert len(chunk) == max_texts or size + len(after[0].text) > max_chars
    for index in range(len(chunks)):
        done = sum(map(len, chunks[:index]))
        assert list(split(iter(records[done:]), window)) == chunks[index:]


@asynccontextmanager
async def job(
    folder: Path, out: str, runner: FakeRunner | None = None, *, task: Task = "embedding", **fields: Any
) -> AsyncIterator[Job]:
    """A run over `in.txt`."""
    settings = Settings()
    bundle = fake_bundle(folder, task=task)
    host = Host.alone(settings, is_repeatable=True)
    engine = Engine(bundle, settings, runner=runner or fake_runner(bundle.manifest), host=host)
    source = Source(folder / "in.txt")
    num_texts = len(list(read(source)))
    form = form_of(folder / out)
    store = Store(folder / out, {}, source, header=form.header(num_texts, 4), force=False)
    request = EncodeRequest([], include=frozenset(includes(bundle.manifest)[:1]), **fields)
    try:
        yield Job(engine, request, source, form, store, num_texts, WINDOW)
    finally:
        store.close()
        await engine.close(1)


def write(folder: Path, texts: list[str]) -> None:
    (folder / "in.txt").write_text("".join(f"{text}\n" for text in texts))


TEXTS = [("the cat is on a river bank " * (1 + number * 7 % 5)).strip()[: 3 + number * 5 % 40] for number in range(100)]


async def test_rows_are_in_the_order_of_the_lines_and_those_of_a_request(tmp_path: Path) -> None:
    write(tmp_path, TEXTS)
    async with job(tmp_path, "out.npy", FakeRunner(), normalize=False) as work:
        await run(work)
        work.store.finish(None)
        asked = await work.engine.encode(EncodeRequest([Text(text) for text in TEXTS], normalize=False))
    found = np.load(tmp_path / "out.npy")
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    expected = np.stack([item.embedding for item in asked.items if item.embedding is not None])
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found[:, 0])) > 5, "texts of several lengths"


async def test_chunks_never_share_a_call_and_calls_are_full(tmp_path: Path) -> None:
    write(tmp_path, ["cat"] * 100)
    runner = FakeRunner()
    async with job(tmp_path, "out.npy", runner) as work:
        await run(work)
    assert runner.shapes == [(8, 3)] * 12 + [(4, 3)]


@pytest.mark.parametrize("task", get_args(Task))
async def test_a_line_is_what_the_route_of_the_task_answers(tmp_path: Path, task: Task) -> None:
    write(tmp_path, TEXTS[:20])
    async with job(tmp_path, "out.jsonl", task=task) as work:
        await run(work)
        work.store.finish(None)
        asked = replace(work.request, inputs=[Text(text) for text in TEXTS[:20]])
        result = await work.engine.encode(asked)
    if task == "sequence_classification":
        answer = classify_json(result, "fake", None)
    else:
        answer = native_json(result, "fake", "float")
    expected = json.loads(answer)["data"]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == expected
    name = {"sequence_classification": "scores", "token_classification": "entities", "late_interaction": "outputs"}
    assert all(set(row) == {"index", name.get(task, task), "num_tokens", "truncated"} for row in expected)


@pytest.mark.parametrize("out", ["out.npy", "out.parquet"])
def test_answers_that_are_no_vectors_go_to_lines_alone(out: str) -> None:
    check_task(Path(out), fake_manifest())
    told = f"{out}: `fake` is a model for sparse, whose answers go to .jsonl"
    with pytest.raises(FileError, match=told):
        check_task(Path(out), fake_manifest(task="sparse"))
    check_task(Path("out.jsonl"), fake_manifest(task="sparse"))


async def test_no_more_of_the_file_is_read_than_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ["cat"] * 400)
    numbers = []

    def counting(source: Source) -> Iterator[Record]:
        for record in read(source):
            numbers.append(record.number)
            yield record

    ahead = []

    def on_call(_: Mapping[str, Array]) -> None:
        ahead.append(len(numbers) - work.store.done.texts)

    monkeypatch.setattr(flow, "read", counting)
    async with job(tmp_path, "out.npy", FakeRunner(on_call=on_call)) as work:
        await run(work)
    assert len(ahead) == 50
    assert max(ahead) <= 3 * WINDOW.max_texts + 1


async def test_a_text_that_is_too_long_is_named_by_its_line_and_what_is_before_is_kept(tmp_path: Path) -> None:
    write(tmp_path, ["cat"] * 50 + ["dog " * 100] + ["cat"] * 50)
    async with job(tmp_path, "out.npy", FakeRunner()) as work:
        with pytest.raises(FileError) as error:
            await run(work)
        told = "line 51: 64 tokens allowed, got 102; --truncate says which side may be cut"
        assert str(error.value) == f"{tmp_path / 'in.txt'}: {told}"
        assert work.store.done.texts == 50
    async with job(tmp_path, "out.npy", FakeRunner(), truncate="right") as work:
        assert work.store.done.texts == 50
        await run(work)
        assert (work.store.done.texts, work.store.done.cut) == (101, 1)


def failing_at(token: int) -> Callable[[Mapping[str, Array]], None]:
    def on_call(inputs: Mapping[str, Array]) -> None:
        if (inputs["input_ids"] == token).any():
            raise ValueError("boom")

    return on_call


async def test_a_text_that_the_model_fails_on_is_named_by_its_line(tmp_path: Path) -> None:
    texts = ["cat"] * 50
    texts[29] = "dog"
    write(tmp_path, texts)
    async with job(tmp_path, "out.npy", FakeRunner()) as work:
        (dog,) = await work.engine.tokenize(EncodeRequest([Text("dog")], include=frozenset({"tokens"})))
        assert dog.tokens is not None
        token = dog.tokens[1].id
    async with job(tmp_path, "out.npy", FakeRunner(on_call=failing_at(token))) as work:
        with pytest.raises(FileError, match="line 30: the model failed on this input"):
            await run(work)
        assert work.store.done.texts == 24


async def test_cancelling_keeps_whole_chunks_and_the_next_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path, TEXTS)
    async with job(tmp_path, "whole.npy", FakeRunner()) as work:
        await run(work)
        work.store.finish(None)
    num_calls = 0

    def on_call(_: Mapping[str, Array]) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 10:
            loop.call_soon_threadsafe(task.cancel)

    loop = asyncio.get_running_loop()
    async with job(tmp_path, "out.npy", FakeRunner(on_call=on_call)) as work:
        task = asyncio.create_task(run(work))
        with pytest.raises(asyncio.CancelledError):
            await task
    async with job(tmp_path, "out.npy", FakeRunner()) as work:
        assert 0 < work.store.done.texts < len(TEXTS)
        await run(work)
        work.store.finish(None)
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
