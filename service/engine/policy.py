"""Which waiting rows run together: the batching policy, without threads and without a clock.

A call starts from one row and takes those of about its length, longest first, until the next one is much shorter or
the padded tokens are used up: padding is the largest cost of mixed lengths. Which row it starts from is fair among
requests, as in start-time fair queueing (Goyal, Vin and Cheng, 1996): the request that has had the least so far is
next, so a short text never waits behind all of a long list. Every few calls it is the oldest row's turn instead, so
nothing waits for ever. Rows of different graphs or groups never share a call.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from service.engine.batch import Row
from service.manifest import Manifest
from service.settings import Settings

MIN_WIDTH_SHARE = 0.75
MIN_CALL_TOKENS = 128
# One call in so many starts from the oldest row.
OLDEST_EVERY = 4
_MIN_SWEEP = 64
_CALL_TOKENS = 1024
# Encoders of text on a CPU, measured on two cores with 2 MiB of cache each: above these, what a layer writes has fallen
# out of it before the next operator reads it, and in int8 those operators are half of the time.
_CALL_TOKENS_CPU = 256
_CALL_TOKENS_INT8 = 192


def call_tokens(manifest: Manifest, settings: Settings) -> int:
    """Most padded tokens in one call: as the settings say, or what is best for such a model."""
    if settings.max_call_tokens is not None:
        return settings.max_call_tokens
    if manifest.kind == "tensors" or settings.device != "cpu":
        return _CALL_TOKENS
    return _CALL_TOKENS_INT8 if manifest.precision == "int8" else _CALL_TOKENS_CPU


@dataclass(slots=True, eq=False)
class Flow:
    """The rows of one request. num_served: tokens it has had, and those that others had had when it came."""

    number: int
    num_served: int
    tickets: deque[Ticket] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class Ticket:
    """A row's place in the queue. is_waiting: neither taken nor discarded yet."""

    row: Row
    flow: Flow
    is_waiting: bool = True

    @property
    def group(self) -> Hashable:
        """Equal for rows that may share a call."""
        return self if self.row.group is None else (self.row.role, self.row.group)


@dataclass(slots=True)
class CallQueue:
    """The rows that wait, and `take`, the policy. Not thread-safe: the batcher holds its lock around every call.

    max_call_tokens: most padded tokens in a call (one row alone may exceed it).
    """

    max_call_tokens: int
    num_tokens: int = 0
    _num_calls: int = 0
    _num_flows: int = 0
    _num_served: int = 0
    _num_waiting: int = 0
    _num_discarded: int = 0
    _arrivals: deque[Ticket] = field(default_factory=deque)
    _by_length: dict[Hashable, dict[int, deque[Ticket]]] = field(default_factory=dict)
    _least_served: list[tuple[int, int, Flow]] = field(default_factory=list)

    def push(self, rows: Sequence[Row]) -> list[Ticket]:
        """Let the rows of one request wait."""
        if not self._num_waiting:
            self._num_calls = 0  # nobody's turn is put off, and the calls of one request alone depend on nothing before
        self._num_flows += 1
        flow = Flow(self._num_flows, self._num_served)
        tickets = [Ticket(row, flow) for row in rows]
        flow.tickets.extend(sorted(tickets, key=lambda ticket: -ticket.row.length))
        for ticket in tickets:
            row = ticket.row
            self._arrivals.append(ticket)
            self._by_length.setdefault(ticket.group, {}).setdefault(row.length, deque()).append(ticket)
            self.num_tokens += row.length
        self._num_waiting += len(tickets)
        heapq.heappush(self._least_served, (flow.num_served, flow.number, flow))
        return tickets

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
        first = self._first()
        if first is None:
            return []
        share = self.max_call_tokens if num_idle == 1 else max(MIN_CALL_TOKENS, -(-self.num_tokens // num_idle))
        self._leave(first)
        call = [first, *self._mates(first, min(share, self.max_call_tokens))]
        if not self._by_length[first.group]:
            del self._by_length[first.group]  # groups may be as many as rows
        for ticket in call:
            ticket.flow.num_served += ticket.row.length
        for flow in {ticket.flow for ticket in call}:
            if _head(flow.tickets) is not None:
                heapq.heappush(self._least_served, (flow.num_served, flow.number, flow))
        self._num_calls += 1
        return sorted(call, key=lambda ticket: -ticket.row.length)

    def _first(self) -> Ticket | None:
        oldest = _head(self._arrivals)
        if oldest is None or self._num_calls % OLDEST_EVERY == OLDEST_EVERY - 1:
            return oldest
        while self._least_served:
            num_served, _, flow = self._least_served[0]
            longest = _head(flow.tickets)
            if longest is not None and num_served == flow.num_served:
                self._num_served = num_served
                return longest
            heapq.heappop(self._least_served)
        raise AssertionError("a row waits, and its request does not")

    def _mates(self, first: Ticket, budget: int) -> Iterator[Ticket]:
        """Waiting rows that share the call of the first, taken out of the queue as they are given."""
        lengths = self._by_length[first.group]
        width, num_rows = first.row.length, 1
        for length in sorted((n for n in lengths if n * MIN_WIDTH_SHARE <= width), reverse=True):
            while (ticket := _head(lengths[length])) is not None:
                if length > width and 2 * length > budget:
                    break  # only a longer one does not fit: shorter ones may
                if _is_cut(num_rows, max(width, length), length, budget):
                    return
                width, num_rows = max(width, length), num_rows + 1
                self._leave(ticket)
                yield ticket
            if _head(lengths[length]) is None:
                del lengths[length]

    def _leave(self, ticket: Ticket) -> None:
        ticket.is_waiting = False
        self.num_tokens -= ticket.row.length
        self._num_waiting -= 1

    def _sweep(self) -> None:
        # Discarded rows are skipped when a call comes to them, which may be never: they must not pile up till then.
        self._num_discarded = 0
        self._arrivals = _waiting(self._arrivals)
        self._least_served = [entry for entry in self._least_served if _head(entry[2].tickets) is not None]
        heapq.heapify(self._least_served)
        for group, lengths in list(self._by_length.items()):
            for length in list(lengths):
                lengths[length] = _waiting(lengths[length])
                if not lengths[length]:
                    del lengths[length]
            if not lengths:
                del self._by_length[group]


def _head(tickets: deque[Ticket]) -> Ticket | None:
    """The first one that still waits; those before it are dropped."""
    while tickets and not tickets[0].is_waiting:
        tickets.popleft()
    return tickets[0] if tickets else None


def _waiting(tickets: deque[Ticket]) -> deque[Ticket]:
    return deque(ticket for ticket in tickets if ticket.is_waiting)


def _is_cut(num_rows: int, width: int, next_length: int, budget: int) -> bool:
    is_full = (num_rows + 1) * width > budget
    is_wasteful = next_length < MIN_WIDTH_SHARE * width and num_rows * width >= MIN_CALL_TOKENS
    return is_full or is_wasteful
