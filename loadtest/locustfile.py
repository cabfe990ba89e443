"""The same users for Locust's own command, with its web page: `locust -f loadtest/locustfile.py --host URL`.

Kinds are chosen by `--tags`; users and time as Locust does it. What counts for the verdict is the time after the last
user was started. Without the web page a missed limit makes the exit code 1.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import LocalRunner
from rich.console import Console

from loadtest import bounds
from loadtest.bounds import Bounds
from loadtest.errors import LoadTestError
from loadtest.load import Pulse
from loadtest.recorder import Recorder
from loadtest.report import describe_plan, make_fault_table, make_table, plain_or_terminal, print_verdict
from loadtest.shapes import Stage
from loadtest.target import Address, Target, find_target
from loadtest.texts import KINDS
from loadtest.thresholds import DEFAULT_FILE, Thresholds, read_thresholds
from loadtest.users import Caller
from loadtest.verdicts import Run, judge
from loadtest.work import Options, Work, choose_kinds

__all__ = ["Caller"]


def _within(allowed: Bounds, read: Callable[[str], float] = float) -> Callable[[str], float]:
    def check(text: str) -> float:
        value = read(text)
        if value not in allowed:
            raise ArgumentTypeError(f"{text} is not {allowed}")
        return value

    # What is no number at all is told by this name.
    check.__name__ = read.__name__
    return check


def add_options(parser: LocustArgumentParser) -> None:
    """Our options beside Locust's."""

    def add(name: str, **more: Any) -> None:
        parser.add_argument(name, include_in_web_ui=False, **more)

    add("--wait", type=_within(bounds.WAIT_S), default=0.5, help="Mean wait of a user after each reply, in seconds")
    add("--openai-only", action="store_true", help="Nothing but POST /v1/embeddings with `input` and `model`")
    add("--model", help="Default: the only one that GET /v1/models lists")
    add("--api-key", env_var="LOADTEST_API_KEY", help="Sent as a bearer token")
    add("--thresholds", type=Path, default=DEFAULT_FILE, help="The limits, a TOML file")
    add(
        "--known-share",
        type=_within(bounds.KNOWN_SHARE),
        default=0.05,
        help="Share that is compared with known answers",
    )
    add("--max-words", type=_within(bounds.NUM_WORDS, int), help="Longest text; default: as the model allows")
    add("--timeout", type=_within(bounds.TIMEOUT_S), default=30.0, help="Longest wait for a reply, in seconds")


def prepare(environment: Environment, **_: Any) -> None:
    """Learn the known answers, and judge each run when it ends."""
    options = environment.parsed_options
    if options is None or not isinstance(environment.runner, LocalRunner):
        sys.exit("loadtest: one process only: a verdict needs every reply")
    if not environment.host:
        sys.exit("loadtest: name the server with --host")
    console = plain_or_terminal()
    try:
        limits = read_thresholds(options.thresholds)
        address = Address(environment.host, options.api_key, options.timeout)
        target = find_target(address, options.model, is_openai_only=options.openai_only)
        kinds = _kinds(options, target)
        work = Work(target, Options(kinds, options.known_share, limits.max_delta, options.max_words))
        work.prepare()
    except LoadTestError as error:
        sys.exit(f"loadtest: {error}")
    environment.host, environment.tags, environment.exclude_tags = target.url, list(kinds), None
    environment.stop_timeout = target.timeout_s + 1
    judge = _Judge(environment, kinds, limits, console)
    judge.listen()
    Caller.bind(work, options.wait, judge.recorder)
    describe_plan(console, work, options.wait)


def _kinds(options: Any, target: Target) -> tuple[str, ...]:
    excluded = options.exclude_tags or ()
    if unknown := [name for name in excluded if name not in KINDS]:
        raise LoadTestError(f"no kind named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    wanted = choose_kinds(options.tags or (), target, is_openai_only=options.openai_only)
    kinds = tuple(name for name in wanted if name not in excluded)
    if not kinds:
        raise LoadTestError(f"--exclude-tags {' '.join(excluded)} leaves no kind")
    return kinds


class _Judge:
    """Listens from the start of a run to its end."""

    def __init__(self, environment: Environment, kinds: tuple[str, ...], limits: Thresholds, console: Console) -> None:
        self._environment, self._kinds, self._limits, self._console = environment, kinds, limits, console
        self.recorder, self._pulse = Recorder(), Pulse()
        self._start_s = self._end_s = self._lateness_ms = 0.0

    def listen(self) -> None:
        events = self._environment.events
        events.request.add_listener(self.recorder)
        events.test_start.add_listener(self._start)
        events.spawning_complete.add_listener(self._spawned)
        events.test_stopping.add_listener(self._stopping)
        events.test_stop.add_listener(self._stop)

    def _start(self, **_: Any) -> None:
        self.recorder.restart()
        self._start_s = 0.0

    def _spawned(self, **_: Any) -> None:
        self._start_s = self.recorder.now_s()
        self._pulse.restart()

    def _stopping(self, **_: Any) -> None:
        self._end_s, self._lateness_ms = self.recorder.now_s(), self._pulse.p95_ms

    def _stop(self, **_: Any) -> None:
        users = sum(self._environment.runner.final_user_classes_count.values()) if self._environment.runner else 0
        stages = (Stage("steady", self._start_s, self._end_s, users),)
        run = Run("steady", stages, self._kinds, self.recorder.samples, self._lateness_ms)
        verdict = judge(run, self._limits)
        self._console.print(make_table(run, self._limits))
        if run.samples.num_faults:
            self._console.print(make_fault_table(run))
        print_verdict(self._console, verdict)
        self._environment.process_exit_code = 1 if verdict.faults else 0


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(prepare)
