"""Locust as a library: users against one target, every reply recorded. Importing this patches the process (gevent)."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import gevent
import numpy as np
from locust.env import Environment
from locust.event import Events
from locust.html import get_html_report
from locust.stats import PERCENTILES_TO_REPORT, StatsCSV, stats_history

from loadtest.recorder import Recorder
from loadtest.samples import Samples
from loadtest.server import Server
from loadtest.shapes import Stage
from loadtest.users import Caller
from loadtest.work import Work

WATCH_INTERVAL_S = 1.0
PULSE_INTERVAL_S = 0.02
# Users by second that come or go: as fast as Locust can, for each begins at a random point of its wait.
SPAWN_RATE = 100

# Called every `WATCH_INTERVAL_S` with the seconds since the start, the number of users and all samples so far.
Watch = Callable[[float, int, Samples], None]


class Pulse:
    """How late the load generator is: the lateness of a timer that shares its thread with all users.

    A generator that has no processor to run on reads replies late and takes that time for the server's.
    """

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._beat = gevent.spawn(self._run)

    def restart(self) -> None:
        """Forget everything so far."""
        self._late_ms = []

    def stop(self) -> None:
        """No more beats."""
        self._beat.kill()

    @property
    def p95_ms(self) -> float:
        """The 95th percentile of the lateness; 0 before the first beat."""
        return float(np.percentile(self._late_ms, 95)) if self._late_ms else 0.0

    def _run(self) -> None:
        while True:
            due_s = time.perf_counter() + PULSE_INTERVAL_S
            gevent.sleep(PULSE_INTERVAL_S)
            self._late_ms.append(1000 * (time.perf_counter() - due_s))


class Load:
    """One Locust environment from its first user to its last.

    server: one that we started, whose memory is read all the while. watch: see `Watch`.
    """

    def __init__(self, work: Work, wait_s: float, *, server: Server | None = None, watch: Watch = lambda *_: None):
        self.recorder = Recorder()
        Caller.bind(work, wait_s, self.recorder)
        self.memory_mib: list[tuple[float, float]] = []
        self._server, self._watch = server, watch
        self._environment = Environment(
            user_classes=[Caller],
            events=Events(),
            host=work.target.url,
            tags=list(work.options.kinds),
            # What is cut off at the end would never be judged: each request gets all the time that it may take.
            stop_timeout=work.target.timeout_s + 1,
        )
        self._environment.events.request.add_listener(self.recorder)
        self._runner = self._environment.create_local_runner()

    @contextmanager
    def running(self) -> Iterator[Pulse]:
        """Watch for the time of the block; afterwards every request has been answered or has timed out."""
        watchers = [gevent.spawn(stats_history, self._runner), gevent.spawn(self._watch_all)]
        pulse = Pulse()
        self.recorder.restart()
        try:
            yield pulse
        finally:
            self._runner.stop()
            pulse.stop()
            gevent.killall(watchers)
            self._runner.quit()

    def play(self, stages: Sequence[Stage]) -> None:
        """Play stages to their end. Not by Locust's own shapes: they look at the time once a second."""
        for stage in stages:
            self.hold(stage.users, stage.end_s - self.recorder.now_s())

    def hold(self, users: int, seconds_s: float) -> None:
        """Go to that number of users and stay there."""
        if users != self._runner.target_user_count:
            self._runner.start(users, SPAWN_RATE)
        gevent.sleep(max(0.0, seconds_s))

    def write(self, folder: Path) -> None:
        """Locust's own report as `report.html`, its tables as `stats.csv` and `failures.csv`."""
        (folder / "report.html").write_text(
            get_html_report(self._environment, show_download_link=False), encoding="utf-8"
        )
        tables = StatsCSV(self._environment, PERCENTILES_TO_REPORT)
        for name, write in (("stats.csv", tables.requests_csv), ("failures.csv", tables.failures_csv)):
            with (folder / name).open("w", encoding="utf-8", newline="") as file:
                write(csv.writer(file))

    def _watch_all(self) -> None:
        while True:
            gevent.sleep(WATCH_INTERVAL_S)
            if self._server is not None:
                self.memory_mib.append((self.recorder.now_s(), self._server.resident_mib()))
            self._watch(self.recorder.now_s(), self._runner.user_count, self.recorder.samples)
