"""The memory that answers take together: an answer is admitted as a row is, before it is computed."""

from __future__ import annotations

from collections.abc import Callable

from service.errors import QueueFullError, RequestError

Hold = Callable[[float], None]

# Until a reader has taken what it waits for: seconds on a good line, up to the deadline on a bad one.
_RETRY_S = 2.0


class AnswerBudget:
    """Bytes of all answers from their admission to their last byte sent. Used by the event loop only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0.0

    def take(self, num_bytes: float) -> None:
        """Admit an answer. Raises RequestError when it can never be, QueueFullError when others must go first."""
        if num_bytes > self._max_bytes:
            raise RequestError(
                f"include: {self._max_bytes} bytes of memory allowed for all answers, this one would take about "
                f"{round(num_bytes)}; send fewer or shorter texts",
                param="include",
                code="output_too_large",
            )
        if self.num_bytes + num_bytes > self._max_bytes:
            raise QueueFullError(
                f"{self._max_bytes} bytes of memory allowed for all answers, {round(self.num_bytes)} are taken by "
                f"others, about {round(num_bytes)} needed by this one",
                retry_after_s=_RETRY_S,
            )
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: float) -> None:
        """An answer was sent, or came to nothing."""
        self.num_bytes -= num_bytes
