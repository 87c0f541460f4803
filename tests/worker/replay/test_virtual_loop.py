"""Simulated time: exact, ordered, at once."""

import asyncio
from collections.abc import Coroutine

import pytest

from worker.replay.virtual_loop import TimeStandsStill, VirtualLoop


def run[T](main: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def test_timers_fire_in_the_order_of_their_times_which_take_no_time() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, asyncio.get_running_loop().time()))

        async with asyncio.TaskGroup() as tasks:
            for name, seconds in (("day", 86_400.0), ("second", 1.0), ("hour", 3_600.0)):
                tasks.create_task(wait(name, seconds))
        return seen

    assert run(main()) == [("second", 1.0), ("hour", 3600.0), ("day", 86_400.0)]


def test_a_timeout_ends_what_would_last_for_ever() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 30.0


def test_what_computes_holds_up_the_others() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        timer = asyncio.create_task(asyncio.sleep(1.0))
        await asyncio.sleep(0.5)
        loop.spend(2.0)
        await timer
        return loop.time()

    assert run(main()) == 2.5


def test_threads_are_calls() -> None:
    def fails() -> None:
        raise KeyError("made so")

    async def main() -> tuple[int, float]:
        with pytest.raises(KeyError):
            await asyncio.to_thread(fails)
        return await asyncio.to_thread(lambda: 7), asyncio.get_running_loop().time()

    assert run(main()) == (7, 0.0)


def test_tasks_that_wait_for_each_other_are_found_out() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeStandsStill):
        run(main())
