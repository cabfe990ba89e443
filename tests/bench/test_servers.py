"""The measured servers sleep when it is not their turn."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from bench.load import Job
from bench.servers import put_load, start_ours, start_server
from loadtest.server import free_port


def wait_for(status: str, pid: int) -> None:
    deadline_s = time.monotonic() + 5
    while psutil.Process(pid).status() != status:
        assert time.monotonic() < deadline_s, psutil.Process(pid).status()
        time.sleep(0.01)


def test_our_server_is_loaded_awake_and_asleep_otherwise(tiny_bundle: Path) -> None:
    server = start_ours(tiny_bundle)
    try:
        wait_for(psutil.STATUS_STOPPED, server.process.pid)
        job = Job("127.0.0.1", server.port, "/v1/embeddings", ['{"input": "hello"}'], 2, warm_up_s=0.1, window_s=0.3)
        load = put_load(server, job)
        assert load.num_requests >= 20
        assert load.num_errors == 0
        wait_for(psutil.STATUS_STOPPED, server.process.pid)
        assert 0 < server.ready_s < 30
        assert server.resident_mib() > 10
    finally:
        server.stop()
    assert server.process.returncode == 0


def test_a_server_that_ends_at_once_is_told_with_its_last_words() -> None:
    with pytest.raises(RuntimeError, match="broken: ended with code 3: no luck"):
        start_server("broken", ["-c", "import sys; print('no luck'); sys.exit(3)"], free_port())
