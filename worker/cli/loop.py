"""Running a coroutine as the whole program: the faster event loop where it is installed, and a stop by signal."""

import asyncio
import signal
from collections.abc import Callable, Coroutine


def run[T](main: Coroutine[object, object, T]) -> T:
    """Like `asyncio.run`, on uvloop where it is installed (it is not available on Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def run_until_signal[T](main: Callable[[asyncio.Event], Coroutine[object, object, T]]) -> T:
    """Run `main(stop)`; SIGINT and SIGTERM set `stop`, so that it ends by itself and still says its totals.

    A second signal cancels it.
    """

    async def whole() -> T:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        task = asyncio.ensure_future(main(stop))

        def signalled() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signalled)
        try:
            return await task
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    return run(whole())


async def wait_for_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Wait at most `seconds`; True when `stop` is set."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
    return stop.is_set()
