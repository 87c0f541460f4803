"""Running a coroutine as the whole program: the faster event loop where it is installed, and a stop by signal."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from worker.connection import tell_closed_transports

log = logging.getLogger("scorelane.loop")


class Threads(ThreadPoolExecutor):
    """The loop's threads for blocking calls. The loop's end does not wait for one that is stuck; `leave` sees to it."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def run[T](main: Coroutine[object, object, T]) -> T:
    """Like `asyncio.run`, on uvloop where it is installed (it is not available on Windows)."""
    open_standard_streams()
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        pass
    else:
        factory = uvloop.new_event_loop
        tell_closed_transports()
    with asyncio.Runner(loop_factory=factory) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(tell)
        loop.set_default_executor(Threads(thread_name_prefix="blocking"))
        return runner.run(main)


def open_standard_streams() -> None:
    """Give descriptors 0 to 2 to nothing where they are closed: a socket there would end the process in libuv."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A request that was given up, such as a commit while the brokers stand still, goes on inside the Kafka client, and
    nobody hears how it ends: one line instead of a traceback. Everything else as usual."""
    error = context.get("exception")
    if type(error).__module__.startswith("aiokafka.") and "never retrieved" in str(context.get("message")):
        log.warning("a request that was given up ended with %r", error)
    else:
        loop.default_exception_handler(context)


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
