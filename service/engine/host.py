"""What an engine has from the server that it runs in: budgets that all models of the server share, and who listens."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from service.engine.answers import AnswerBudget
from service.metrics import NO_OBSERVER, Observer
from service.settings import Settings


class Queue(Protocol):
    """Whose tokens are counted."""

    @property
    def num_tokens(self) -> int:
        """Tokens waiting and running."""
        ...


class QueueBudget:
    """The tokens that wait and run in all queues of a server. Counted anew each time: nothing can be lost or leak.

    Read by worker threads and by the event loop.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._queues: tuple[Queue, ...] = ()
        self._lock = threading.Lock()

    @property
    def num_tokens(self) -> int:
        """Of all queues together."""
        return sum(queue.num_tokens for queue in self._queues)

    def join(self, queue: Queue) -> None:
        """Count this queue too."""
        with self._lock:
            self._queues += (queue,)

    def leave(self, queue: Queue) -> None:
        """Count it no longer."""
        with self._lock:
            self._queues = tuple(other for other in self._queues if other is not queue)


@dataclass(frozen=True, slots=True)
class Host:
    """What an engine has from its server. queue, answers: shared by all models. observer: hears of this one's calls.

    is_repeatable: requests run one after the other, each in calls that depend on its rows alone, never on time: what
    is asked again, in another process too, gives the same bits.
    """

    queue: QueueBudget
    answers: AnswerBudget
    observer: Observer = NO_OBSERVER
    is_repeatable: bool = False

    @classmethod
    def alone(cls, settings: Settings, observer: Observer = NO_OBSERVER, *, is_repeatable: bool = False) -> Host:
        """Of an engine that shares nothing."""
        queue, answers = QueueBudget(settings.max_queue_tokens), AnswerBudget(settings.max_answers_bytes)
        return cls(queue, answers, observer, is_repeatable)
