"""A run from its plan to its verdict: server, known answers, load, report. Imports Locust: see `__main__`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from locust.log import setup_logging
from rich.console import Console

from loadtest.capacity import Capacity
from loadtest.errors import LoadTestError
from loadtest.load import Load
from loadtest.progress import progress
from loadtest.report import (
    check_folder,
    describe_plan,
    describe_step,
    make_fault_table,
    make_folder,
    make_table,
    print_verdict,
    write_result,
)
from loadtest.run import Search, play
from loadtest.server import Server, serving
from loadtest.target import Address, find_target
from loadtest.thresholds import Thresholds, read_thresholds
from loadtest.verdicts import Run, Verdict, judge, judge_capacity
from loadtest.work import Options, Work, choose_kinds

USERS = {"steady": 4, "step": 10, "spike": 12, "capacity": 512}
DURATION_S = {"steady": 60.0, "step": 100.0, "spike": 60.0, "soak": 600.0}
SOAK_SHARE = 0.8  # of the capacity


@dataclass(frozen=True, slots=True)
class Plan:
    """What the user asked for. address: None = serve the bundle; users, duration_s: None = by shape."""

    address: Address | None
    bundle: Path
    shape: str
    users: int | None
    duration_s: float | None
    wait_s: float
    step_s: float
    target_ms: float | None
    model: str | None
    is_openai_only: bool
    options: Options
    thresholds: Path
    out: Path
    timeout_s: float


def run_plan(plan: Plan, console: Console) -> bool:
    """Do it. -> True when every limit was kept. Raises LoadTestError: it cannot begin, or write its results."""
    setup_logging("WARNING")
    limits = read_thresholds(plan.thresholds)
    check_folder(plan.out)
    with _server(plan, console) as (address, server):
        target = find_target(address, plan.model, is_openai_only=plan.is_openai_only)
        kinds = choose_kinds(plan.options.kinds, target, is_openai_only=plan.is_openai_only)
        work = Work(target, replace(plan.options, kinds=kinds, max_delta=limits.max_delta))
        work.prepare()
        session = _Session(plan, work, limits, console, server)
        describe_plan(console, work, plan.wait_s)
        return session.run()


@dataclass(frozen=True, slots=True)
class _Session:
    plan: Plan
    work: Work
    limits: Thresholds
    console: Console
    server: Server | None

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.work.options.kinds

    def run(self) -> bool:
        """-> True when every limit was kept"""
        if self.plan.shape == "capacity":
            return self._search(self.plan.users or USERS["capacity"])[0]
        users = self.plan.users or USERS.get(self.plan.shape)
        if users is None:
            has_passed, capacity = self._search(USERS["capacity"])
            if not has_passed:
                return False
            users = max(1, int(SOAK_SHARE * capacity.users))
            self.console.print(f"soak with {users} users, {SOAK_SHARE:.0%} of the capacity", soft_wrap=True)
        return self._play(users)

    def _search(self, most: int) -> tuple[bool, Capacity]:
        with progress(self.console, "capacity", None) as watch:
            load = Load(self.work, self.plan.wait_s, watch=watch)
            found = Search(
                load,
                {kind: self.plan.target_ms or self.limits.p95_ms.of(kind) for kind in self.kinds},
                self.limits.max_lateness_ms,
                self.plan.wait_s,
                self.plan.step_s,
                lambda step: self._say(describe_step(step)),
            )
            run, capacity = found.find(most)
        self._say(
            f"capacity: {capacity.users} users, {capacity.per_s:.1f} right replies by s; bound by: {capacity.bound}"
        )
        return self._report(load, run, judge_capacity(run, capacity, self.limits), capacity), capacity

    def _play(self, users: int) -> bool:
        shape, duration_s = self.plan.shape, self.plan.duration_s or DURATION_S[self.plan.shape]
        self._say(f"{shape}: {users} users at most, {duration_s:g} s")
        with progress(self.console, shape, duration_s) as watch:
            load = Load(self.work, self.plan.wait_s, server=self.server, watch=watch)
            run = play(load, shape, users, duration_s, self.kinds)
        self.console.print(make_table(run, self.limits))
        return self._report(load, run, judge(run, self.limits), None)

    def _report(self, load: Load, run: Run, verdict: Verdict, capacity: Capacity | None) -> bool:
        if run.samples.num_faults:
            self.console.print(make_fault_table(run))
        # The verdict comes first: writing can fail, as when the disk has filled up.
        print_verdict(self.console, verdict)
        try:
            folder = make_folder(self.plan.out)
            load.write(folder)
            write_result(folder, self._about(), run, verdict, capacity)
        except OSError as error:
            raise LoadTestError(f"{error.filename or self.plan.out}: not written: {error.strerror}") from None
        self._say(f"All numbers: {folder}")
        return not verdict.faults

    def _about(self) -> dict[str, Any]:
        target = self.work.target
        return {
            "url": target.url,
            "model": target.model,
            "kinds": self.kinds,
            "wait_s": self.plan.wait_s,
            "seed": self.work.options.seed,
            "limits": self.limits.model_dump(),
        }

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, highlight=False)


@contextmanager
def _server(plan: Plan, console: Console) -> Iterator[tuple[Address, Server | None]]:
    if plan.address is not None:
        yield plan.address, None
        return
    if not plan.bundle.exists():
        raise LoadTestError(f"{plan.bundle}: no such directory; `make loadtest` builds it, or name a server with --url")
    console.print(f"starting qkv serve {plan.bundle}", soft_wrap=True, highlight=False)
    with serving(plan.bundle) as server:
        yield Address(server.url, timeout_s=plan.timeout_s), server
