import asyncio

import pytest

from worker.shutdown import unless


async def test_a_start_that_nobody_stops_gives_its_result() -> None:
    async def start() -> int:
        await asyncio.sleep(0)
        return 7

    assert await unless(asyncio.Event(), start()) == 7


async def test_an_error_of_the_start_is_its_own() -> None:
    async def start() -> None:
        raise OSError("port taken")

    with pytest.raises(OSError, match="port taken"):
        await unless(asyncio.Event(), start())


async def test_a_stop_cancels_the_start_and_waits_until_it_has_cleaned_up() -> None:
    stop, log = asyncio.Event(), []

    async def start() -> None:
        log.append("starting")
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    assert await unless(stop, start()) is None
    assert log == ["starting", "cleaned up"]


async def test_a_start_that_ended_in_the_same_moment_counts() -> None:
    stop = asyncio.Event()

    async def start() -> str:
        stop.set()
        return "ready"

    assert await unless(stop, start()) == "ready"


async def test_who_waits_can_be_cancelled_and_the_start_with_it() -> None:
    ended = asyncio.Event()

    async def start() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(unless(asyncio.Event(), start()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(10):
        await ended.wait()
