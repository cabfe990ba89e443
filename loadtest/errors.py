"""What goes wrong: with the run, and with a single reply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LoadTestError(Exception):
    """The run cannot begin, or its result means nothing. The message is one line, for the user."""


class BadReply(Exception):  # noqa: N818 - it is a finding about the server, not an error of ours
    """A reply that must not count as one.

    reason: the same words for the same fault, so that replies can be counted by it.
    detail: what was seen in this one. is_overload: the server said, or showed, that it has too much to do.
    """

    def __init__(self, reason: str, detail: str = "", *, is_overload: bool = False) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.is_overload = is_overload

    def __repr__(self) -> str:
        # Locust counts failures by this.
        return self.reason


@contextmanager
def judging() -> Iterator[None]:
    """Whatever a reply does to its checks, it was no right one: all that is raised in the block becomes a BadReply."""
    try:
        yield
    except BadReply:
        raise
    except Exception as error:
        raise BadReply("the reply cannot be judged", f"{type(error).__name__}: {error}") from error
