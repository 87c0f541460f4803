"""Waiting for a client to stop, never longer than asked."""

import asyncio
import logging
from collections.abc import Awaitable

log = logging.getLogger("scorelane.shutdown")


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
