"""What a model leaves behind that could not be started, or is closed: nothing. And what processes share."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.background import return_memory
from service.bundle import open_bundle
from service.engine.engine import Engine
from service.engine.host import Host
from service.errors import StartupError
from service.settings import Settings
from tools.shared_pages import Pages, pages_of, tabulate

MAPPER = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(pages[::4096])
print("mapped", flush=True)
time.sleep(60)
"""
FILE_MIB = 32


def workers_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{name}-worker-")]


def test_an_engine_that_fails_to_start_leaves_no_thread_no_queue_and_no_session(
    tensor_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def fail(self: Engine) -> None:
        assert workers_of(self.manifest.name)
        raise StartupError("encode.onnx: a fault")

    monkeypatch.setattr(Engine, "_warm", fail)
    monkeypatch.setattr("service.runners.ort.OrtRunner.close", lambda self: closed.append("sessions"))
    bundle, settings = open_bundle(tensor_bundle), Settings(num_threads=2)
    host = Host.alone(settings)
    with pytest.raises(StartupError, match="a fault"):
        Engine.start(bundle, settings, host=host)
    assert closed == ["sessions"]
    assert host.queue._queues == ()
    deadline = time.monotonic() + 10
    while workers_of(bundle.manifest.name):
        assert time.monotonic() < deadline, "a worker waits for ever"
        time.sleep(0.01)


def test_memory_is_returned_without_a_word() -> None:
    return_memory()


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that have mapped the same file and read all of it, one after the other."""
    (tmp_path / "weights").write_bytes(bytes(FILE_MIB * 2**20))
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="no /proc on this system")
def test_a_mapped_file_is_shared_by_those_who_map_it(tmp_path: Path, mapped: list[subprocess.Popen[str]]) -> None:
    found: list[Pages] = []
    for _ in range(2):
        command = [sys.executable, "-c", MAPPER, str(tmp_path / "weights")]
        mapped.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert mapped[-1].stdout is not None
        assert mapped[-1].stdout.readline() == "mapped\n"
        found.append(pages_of(mapped[0].pid, tmp_path))
    alone, beside = found
    assert alone.bundle == beside.bundle == FILE_MIB
    assert abs(alone.resident - beside.resident) < 2
    assert FILE_MIB * 0.4 < alone.proportional - beside.proportional < FILE_MIB * 0.6 + 10
    assert alone.own - beside.own > FILE_MIB * 0.9


def test_the_table_has_means_and_the_sum() -> None:
    table = tabulate([[Pages(100, 90, 80, 10)], [Pages(100, 60, 50, 10), Pages(120, 62, 52, 10)]])
    cells = [list(column.cells) for column in table.columns]
    assert cells == [["1", "2"], ["100", "110"], ["90", "61"], ["80", "51"], ["10", "10"], ["90", "122"]]
