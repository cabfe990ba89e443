"""The process of the load generator: one that has no time is found out, and only it is patched by gevent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loadtest.command import finish, start

pytestmark = pytest.mark.alone

CODE = """
import time, gevent
from loadtest.load import Pulse

pulse = Pulse()
def work():
    while True:
        end_s = time.perf_counter() + {busy_s}
        while time.perf_counter() < end_s:
            pass
        gevent.sleep(0.001)
worker = gevent.spawn(work)
gevent.sleep(1)
pulse.stop()
print(pulse.p95_ms)
"""


@pytest.mark.parametrize(("busy_s", "least_ms", "most_ms"), [(0.0, 0, 90), (0.2, 100, 1000)])
def test_lateness_is_that_of_the_work_of_others(tmp_path: Path, busy_s: float, least_ms: float, most_ms: float) -> None:
    done = finish(start("-c", CODE.format(busy_s=busy_s)), tmp_path)
    assert done.code == 0, done.output
    assert least_ms <= float(done.output) <= most_ms


def test_what_tests_import_does_not_patch_the_process(tmp_path: Path) -> None:
    names = (
        "answers bounds capacity checks corpus errors recorder report samples server shapes target texts thresholds "
        "verdicts work"
    ).split()
    code = "import sys; sys.modules['locust'] = sys.modules['gevent'] = None\n"
    done = finish(start("-c", code + "\n".join(f"import loadtest.{name}" for name in names)), tmp_path)
    assert done.code == 0, done.output
