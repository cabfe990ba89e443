"""What the engine alone can do: the bundle's own graph in this process, without HTTP, tokenising or an event loop.

A closed loop, as the clients are: as many texts are in flight as clients wait, and the service's own policy cuts them
into calls. Every thread layout is measured; the ceiling is the best.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np

from bench.texts import open_tokenizer
from service.bundle import Bundle, open_text_bundle
from service.engine.batch import Row, collate
from service.engine.policy import CallQueue, Ticket, call_tokens
from service.manifest import TOKENIZER, TextManifest
from service.runners.base import Array
from service.runners.cpus import usable_cpus
from service.runners.ort import LONE_SPIN_US, open_session
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Layout:
    """Worker threads that call one session, and the threads that each call may use."""

    num_workers: int
    num_threads: int

    @property
    def spin_us(self) -> int:
        """As the service has it: only the threads of a lone worker stay awake between operators."""
        return LONE_SPIN_US if self.num_workers == 1 and self.num_threads > 1 else 0

    def __str__(self) -> str:
        return f"{self.num_workers} × {self.num_threads}"


def layouts(num_cpus: int | None = None) -> list[Layout]:
    """One worker with every core, a worker for every core, and both."""
    cpus = num_cpus or usable_cpus()
    return list(dict.fromkeys([Layout(1, cpus), Layout(cpus, 1), Layout(cpus, cpus)]))


class Ceiling:
    """The graph `encode` of one bundle under every thread layout."""

    def __init__(self, bundle_dir: Path) -> None:
        self.bundle: Bundle[TextManifest] = open_text_bundle(bundle_dir)
        self._graph = self.bundle.manifest.graph("encode")
        self._max_call_tokens = call_tokens(self.bundle.manifest, Settings())
        self._tokenizer = open_tokenizer(bundle_dir / TOKENIZER)
        graph_file = self.bundle.file(self._graph.file)
        self._sessions = {
            layout: open_session(graph_file, layout.num_threads, spin_us=layout.spin_us) for layout in layouts()
        }

    def rows(self, texts: list[str]) -> list[Row]:
        """The texts, tokenised."""
        return [self._row(encoding.ids) for encoding in self._tokenizer.encode_batch(texts)]

    def measure(self, layout: Layout, requests: list[list[Row]], *, clients: int, window_s: float) -> float:
        """Requests by second, `clients` of them in flight."""
        loop = _Loop(CallQueue(self._max_call_tokens), cycle(requests))
        for _ in range(clients):
            loop.admit()
        threads = [threading.Thread(target=self._work, args=(layout, loop)) for _ in range(layout.num_workers)]
        for thread in threads:
            thread.start()
        loop.wait_finished(1)  # the first answers are the warm-up
        num_warm, start_s = loop.num_finished, time.perf_counter()
        time.sleep(window_s)
        # The window ends with an answer as it began with one: a part of a long request would count as nothing.
        num_finished = loop.wait_finished(max(loop.num_finished + 1, num_warm + clients))
        elapsed_s = time.perf_counter() - start_s
        loop.stop()
        for thread in threads:
            thread.join()
        return (num_finished - num_warm) / elapsed_s

    def pooled(self, rows: list[Row], layout: Layout | None = None) -> Array:
        """One call. -> `[rows, dim]` float32"""
        inputs = collate(self._graph, rows, pad_token_id=self.bundle.manifest.text.pad_token_id)
        pooled: Array = self._sessions[layout or layouts()[0]].run(["pooled"], inputs)[0]
        return pooled

    def _work(self, layout: Layout, loop: _Loop) -> None:
        while tickets := loop.take():
            self.pooled([ticket.row for ticket in tickets], layout)
            loop.finish(tickets)

    @staticmethod
    def _row(ids: list[int]) -> Row:
        return Row({"input_ids": np.array(ids, dtype=np.int64)}, {"seq": len(ids)}, "encode", ("pooled",))


@dataclass(slots=True)
class _Loop:
    """Requests in flight: when the last row of one is finished, the next one takes its place."""

    queue: CallQueue
    requests: Iterator[list[Row]]
    num_finished: int = 0
    _left: dict[Ticket, list[int]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _num_idle: int = 0
    _is_stopped: bool = False

    def admit(self) -> None:
        rows = next(self.requests)
        num_left = [len(rows)]
        for ticket in self.queue.push(rows):
            self._left[ticket] = num_left

    def take(self) -> list[Ticket]:
        with self._changed:
            self._num_idle += 1
            while not self._is_stopped:
                if tickets := self.queue.take(self._num_idle):
                    self._num_idle -= 1
                    return tickets
                self._changed.wait()
            return []

    def finish(self, tickets: list[Ticket]) -> None:
        with self._changed:
            for ticket in tickets:
                num_left = self._left.pop(ticket)
                num_left[0] -= 1
                if not num_left[0]:
                    self.num_finished += 1
                    self.admit()
            self._changed.notify_all()

    def wait_finished(self, count: int) -> int:
        """Wait until so many requests are finished. -> how many are"""
        with self._changed:
            self._changed.wait_for(lambda: self.num_finished >= count)
            return self.num_finished

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
