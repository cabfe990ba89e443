"""Work that is done where it hurts least: little of it at once, much of it beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Built = TypeVar("Built")

# Above it a thread does the work: what is smaller is done sooner than a thread is reached.
_LARGE_BYTES = 2**20


async def build_sized(build: Callable[[], Built], size: float) -> Built:
    """Something of about this many bytes; when they are many, built beside the event loop."""
    return await asyncio.to_thread(build) if size > _LARGE_BYTES else build()
