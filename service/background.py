"""Blocking work beside the event loop, and memory that goes back to the system."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_THREAD = "loader"
_TRIM = "malloc_trim"

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Blocking work in a thread of its own, for which the process does not wait when it ends.

    Cancelling leaves it to itself.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(end: Callable[[Any], None], value: object) -> None:
        # The loop may have ended meanwhile: nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if done.done() else end(value))

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            tell(done.set_exception, error)
        else:
            tell(done.set_result, result)

    threading.Thread(target=run, name=_THREAD, daemon=True).start()
    return await done


def is_at_work() -> bool:
    """Whether such a thread runs: it may be in native code, which takes the process down when it ends under it."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def return_memory() -> None:
    """Give what a closed model has left behind back to the system.

    An engine's parts know each other, so that only the collector frees them; and glibc keeps what threads have freed,
    hundreds of MB after some reloads, unless it is asked.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), _TRIM, None)
    if trim is not None:  # glibc alone has it
        trim(0)
