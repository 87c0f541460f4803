"""Waiting for a client to stop, never longer than asked, and for a start only while it is wanted."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Final

log = logging.getLogger("scorelane.shutdown")

CANCEL_S: Final = 5.0
"""For what is cancelled to end."""


async def bounded(stopping: Awaitable[object], timeout_s: float, what: str) -> bool:
    """Await a client's stop for at most `timeout_s` seconds; returns whether it ended cleanly.

    aiokafka's stop can hang without brokers, and can raise CancelledError although nobody cancelled (its own tasks'
    leak out): that is not ours to propagate. What does not end is left to the end of the process.
    """
    task = asyncio.ensure_future(stopping)
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        task.cancel()
        log.warning("%s did not stop within %.1f s and is left behind", what, timeout_s)
        return False
    if task.cancelled():
        return False
    error = task.exception()
    if error is not None:
        log.warning("%s stopped with an error: %r", what, error)
    return error is None


async def unless[T](stop: asyncio.Event, work: Coroutine[object, object, T]) -> T | None:
    """The result of `work`; None when `stop` is set before: the work is cancelled then.

    Threads that it waits for go on until they are done.
    """
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await bounded(working, CANCEL_S, "the start")
        return None
    finally:
        stopping.cancel()
        working.cancel()
