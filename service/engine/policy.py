"""Which waiting rows run together: the batching policy, without threads and without a clock.

A call takes rows longest first and is cut when the next row is much shorter than its width, or when its padded tokens
are used up: padding is the largest cost of mixed lengths. A row is overtaken by at most `max_overtakes` calls; then a
call starts from it. Rows of different graphs never share a call.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from service.bundle import Role
from service.engine.batch import Row

MIN_WIDTH_SHARE = 0.75
MIN_CALL_TOKENS = 128
MAX_OVERTAKES = 8
_MIN_SWEEP = 64


@dataclass(slots=True, eq=False)
class Ticket:
    """A row's place in the queue. arrived: calls taken before it came. is_waiting: neither taken nor discarded yet."""

    row: Row
    arrived: int
    is_waiting: bool = True


@dataclass(slots=True)
class CallQueue:
    """The rows that wait, and `take`, the policy. Not thread-safe: the batcher holds its lock around every call.

    max_call_tokens: most padded tokens in a call (one row alone may exceed it).
    """

    max_call_tokens: int
    max_overtakes: int = MAX_OVERTAKES
    num_calls: int = 0
    num_tokens: int = 0
    _num_waiting: int = 0
    _num_discarded: int = 0
    _arrivals: deque[Ticket] = field(default_factory=deque)
    _by_length: dict[Role, dict[int, deque[Ticket]]] = field(default_factory=dict)

    def push(self, row: Row) -> Ticket:
        """Let a row wait."""
        ticket = Ticket(row, self.num_calls)
        self._arrivals.append(ticket)
        self._by_length.setdefault(row.role, {}).setdefault(row.length, deque()).append(ticket)
        self.num_tokens += row.length
        self._num_waiting += 1
        return ticket

    def discard(self, ticket: Ticket) -> bool:
        """Take a row out that nobody wants any more. False when it was taken before."""
        was_waiting = ticket.is_waiting
        if was_waiting:
            self._leave(ticket)
            self._num_discarded += 1
            if self._num_discarded > max(_MIN_SWEEP, self._num_waiting):
                self._sweep()
        return was_waiting

    def take(self, num_idle: int = 1) -> list[Ticket]:
        """The rows of the next call, longest first; empty when nothing waits.

        num_idle: workers that could run a call now, the caller included: a short queue is shared out between them.
        """
        oldest = self._oldest()
        if oldest is None:
            return []
        lengths = self._by_length[oldest.row.role]
        share = self.max_call_tokens if num_idle == 1 else max(MIN_CALL_TOKENS, -(-self.num_tokens // num_idle))
        is_due = self.num_calls - oldest.arrived >= self.max_overtakes
        call = [oldest] if is_due else []
        for ticket in call:
            self._leave(ticket)
        self._fill(call, lengths, min(share, self.max_call_tokens))
        self.num_calls += 1
        return call

    def _oldest(self) -> Ticket | None:
        while self._arrivals and not self._arrivals[0].is_waiting:
            self._arrivals.popleft()
        return self._arrivals[0] if self._arrivals else None

    def _fill(self, call: list[Ticket], lengths: dict[int, deque[Ticket]], budget: int) -> None:
        width = call[0].row.length if call else max(lengths)
        for length in sorted((n for n in lengths if n <= width), reverse=True):
            tickets = lengths[length]
            while tickets:
                if not tickets[0].is_waiting:
                    tickets.popleft()
                    continue
                if call and _is_cut(len(call), call[0].row.length, length, budget):
                    return
                call.append(tickets.popleft())
                self._leave(call[-1])
            del lengths[length]

    def _leave(self, ticket: Ticket) -> None:
        ticket.is_waiting = False
        self.num_tokens -= ticket.row.length
        self._num_waiting -= 1

    def _sweep(self) -> None:
        # Discarded rows are skipped when a call comes to them, which may be never: they must not pile up till then.
        self._num_discarded = 0
        self._arrivals = deque(ticket for ticket in self._arrivals if ticket.is_waiting)
        for lengths in self._by_length.values():
            for length in list(lengths):
                lengths[length] = deque(ticket for ticket in lengths[length] if ticket.is_waiting)
                if not lengths[length]:
                    del lengths[length]


def _is_cut(num_rows: int, width: int, next_length: int, budget: int) -> bool:
    is_full = (num_rows + 1) * width > budget
    is_wasteful = next_length < MIN_WIDTH_SHARE * width and num_rows * width >= MIN_CALL_TOKENS
    return is_full or is_wasteful
