"""Rows wait, worker threads pull calls: every row admitted gets its answer or its error, whatever happens.

Batches form while the previous ones run; there is no wait window. A request is admitted whole or refused whole, by
tokens. Failure, cancel, deadline and shutdown each end every future. Knows no tokenizer and no model: `compute` runs a
call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from service.engine.batch import Row, RowResult
from service.engine.host import QueueBudget
from service.engine.policy import CallQueue, Ticket
from service.errors import BackendError, NotReadyError, QueueFullError, RequestError, ServiceError
from service.graph_spec import Role

Outcome = RowResult | ServiceError
Compute = Callable[[Role, Sequence[Row], bool], list[Outcome]]

_START_RATE = 2_000.0  # tokens per second, before anything was measured
_RATE_MEMORY = 0.9

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """The rows of one request on their way through the queue, and the future that ends with all of them."""

    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[list[RowResult]]
    num_left: int
    results: list[RowResult]
    tickets: list[Ticket] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Call:
    """What one worker runs now."""

    tickets: list[Ticket]
    started_s: float
    num_tokens: int


class Batcher:
    """Admits jobs, shares their rows out to worker threads, and resolves every future on its own event loop."""

    def __init__(  # noqa: PLR0913 - what it works with, and how
        self,
        compute: Compute,
        *,
        name: str,
        num_workers: int,
        max_call_tokens: int,
        budget: QueueBudget,
        is_repeatable: bool = False,
    ) -> None:
        """name: of the model, for threads and log lines. budget: shared with the other models of the server.

        is_repeatable: which rows share a call depends on the rows of the request alone (`Host`).
        """
        self._compute = compute
        self._is_repeatable = is_repeatable
        self._turn: AbstractAsyncContextManager[None] = asyncio.Lock() if is_repeatable else nullcontext()
        self._name = name
        self._budget = budget
        self._queue = CallQueue(max_call_tokens)
        self._jobs: dict[Ticket, tuple[Job, int]] = {}
        self._running: dict[int, Call] = {}
        self._changed = threading.Condition()
        self._is_closing = False
        self._num_idle = 0
        self._tokens_per_s = _START_RATE
        self.last_success_s: float | None = None
        budget.join(self)
        self._workers = [self._start_worker(index) for index in range(num_workers)]

    # -- the event loop's side ------------------------------------------------------------------------------------

    async def submit(self, rows: Sequence[Row]) -> list[RowResult]:
        """Run rows and give their outputs in order.

        Raises RequestError, QueueFullError or NotReadyError before anything is queued, BackendError when a row fails.
        Cancelling drops what has not run.
        """
        if not rows:
            return []
        async with self._turn:
            loop = asyncio.get_running_loop()
            job = Job(loop, loop.create_future(), len(rows), [{} for _ in rows])
            self._admit(job, rows)
            try:
                return await job.done
            except BaseException:
                self._drop(job)
                raise

    def _admit(self, job: Job, rows: Sequence[Row]) -> None:
        num_tokens = sum(row.length for row in rows)
        with self._changed:
            if self._is_closing:
                raise NotReadyError("the server is shutting down", retry_after_s=5, code="draining")
            max_tokens = self._budget.max_tokens
            if num_tokens > max_tokens:
                raise RequestError(
                    f"{max_tokens} tokens allowed in one request, got {num_tokens}", code="too_many_tokens"
                )
            if (waiting := self._budget.num_tokens) + num_tokens > max_tokens:
                raise QueueFullError(
                    f"the queue is full: {max_tokens} tokens allowed, {waiting} queued or running, "
                    f"{num_tokens} in this request",
                    retry_after_s=(waiting + num_tokens - max_tokens) / self._tokens_per_s,
                )
            job.tickets = self._queue.push(rows)
            self._jobs |= {ticket: (job, index) for index, ticket in enumerate(job.tickets)}
            self._changed.notify(len(rows))

    def _drop(self, job: Job) -> None:
        with self._changed:
            for ticket in job.tickets:
                if self._queue.discard(ticket):
                    del self._jobs[ticket]

    @property
    def num_tokens(self) -> int:
        """Tokens waiting and running."""
        return self._queue.num_tokens + sum(call.num_tokens for call in list(self._running.values()))

    @property
    def num_running(self) -> int:
        """Calls running now."""
        return len(self._running)

    def longest_call_s(self) -> float:
        """Seconds that the longest running call has taken so far; 0 when none runs."""
        now = time.monotonic()
        return max((now - call.started_s for call in list(self._running.values())), default=0.0)

    def num_alive(self) -> int:
        """Worker threads that live."""
        return sum(worker.is_alive() for worker in self._workers)

    def stop(self) -> None:
        """Admit nothing more; the workers end when nothing waits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    async def close(self, timeout_s: float) -> None:
        """Admit nothing more, let what was admitted finish, then end every future that is left with an error."""
        self.stop()
        deadline = time.monotonic() + timeout_s
        while self._jobs and time.monotonic() < deadline:  # noqa: ASYNC110 - workers are threads, once a process
            await asyncio.sleep(0.01)
        with self._changed:
            left = [*self._jobs]
            for ticket in left:
                self._queue.discard(ticket)
        error = NotReadyError("the server shut down before this request was finished", retry_after_s=5, code="draining")
        self._deliver([(ticket, error) for ticket in left])
        self._budget.leave(self)

    # -- the workers' side ----------------------------------------------------------------------------------------

    def _start_worker(self, index: int) -> threading.Thread:
        worker = threading.Thread(target=self._work, args=(index,), name=f"{self._name}-worker-{index}", daemon=True)
        worker.start()
        return worker

    def _work(self, index: int) -> None:
        try:
            while (call := self._next_call(index)) is not None:
                # Nothing else runs or waits, in no model of the server.
                is_alone = not self._is_repeatable and self._budget.num_tokens == call.num_tokens
                outcomes = self._run(call, is_alone=is_alone)
                self._finish(index, call, outcomes)
        except BaseException:
            _log.critical("worker %d of %s died; a new one takes its place", index, self._name, exc_info=True)
            self._bury(index)

    def _next_call(self, index: int) -> Call | None:
        with self._changed:
            self._num_idle += 1
            try:
                while not (tickets := self._queue.take(1 if self._is_repeatable else self._num_idle)):
                    if self._is_closing:
                        return None
                    self._changed.wait()
            finally:
                self._num_idle -= 1
            # From here on the rows are this worker's: whatever happens to it, `_bury` answers them.
            num_tokens = sum(ticket.row.length for ticket in tickets)
            call = self._running[index] = Call(tickets, time.monotonic(), num_tokens)
            return call

    def _run(self, call: Call, *, is_alone: bool) -> list[Outcome]:
        return run_isolated(self._compute, [ticket.row for ticket in call.tickets], is_alone=is_alone)

    def _finish(self, index: int, call: Call, outcomes: list[Outcome]) -> None:
        now = time.monotonic()
        answers = list(zip(call.tickets, outcomes, strict=True))
        with self._changed:
            del self._running[index]
            rate = call.num_tokens * len(self._workers) / max(now - call.started_s, 1e-6)
            self._tokens_per_s = _RATE_MEMORY * self._tokens_per_s + (1 - _RATE_MEMORY) * rate
            if any(isinstance(outcome, dict) for outcome in outcomes):
                self.last_success_s = now
        self._deliver(answers)

    def _bury(self, index: int) -> None:
        with self._changed:
            call = self._running.pop(index, None)
            if not self._is_closing:
                self._workers[index] = self._start_worker(index)
        if call is not None:
            error = BackendError("the model failed on this input")
            self._deliver([(ticket, error) for ticket in call.tickets])

    def _deliver(self, answers: list[tuple[Ticket, Outcome]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, int, Outcome]]] = {}
        with self._changed:
            for ticket, outcome in answers:
                if (entry := self._jobs.pop(ticket, None)) is not None:
                    by_loop.setdefault(entry[0].loop, []).append((*entry, outcome))
        for loop, outcomes in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, outcomes)  # one wake-up a call
            except RuntimeError:
                _log.warning("%d answers came after their event loop had closed", len(outcomes))


def _resolve(outcomes: list[tuple[Job, int, Outcome]]) -> None:
    for job, index, outcome in outcomes:
        if job.done.done():
            continue
        if isinstance(outcome, ServiceError):
            job.done.set_exception(outcome)
            continue
        job.results[index] = outcome
        job.num_left -= 1
        if not job.num_left:
            job.done.set_result(job.results)


def run_isolated(compute: Compute, rows: Sequence[Row], *, is_alone: bool) -> list[Outcome]:
    """Run rows together; when that raises, halve until only the rows that really fail have an error."""
    try:
        return compute(rows[0].role, rows, is_alone)
    except ServiceError as error:
        return [error] * len(rows)  # of the whole call: no row is to blame
    except Exception:
        if len(rows) == 1:
            worker = threading.current_thread().name  # which names the model
            _log.exception("%s: inference failed on a row of %d tokens", worker, rows[0].length)
            return [BackendError("the model failed on this input")]
        middle = len(rows) // 2
        halves = (rows[:middle], rows[middle:])
        return [outcome for half in halves for outcome in run_isolated(compute, half, is_alone=False)]
