"""An event loop whose time is a number: what it waits for happens at once, in order, and always in the same order."""

import asyncio
from collections.abc import Callable
from typing import Any


class TimeStandsStill(RuntimeError):
    """All tasks wait, and nothing is scheduled that could wake one."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Timers fire when the loop has nothing else to do, and time is what they were set for.

    There are no threads: what is given to an executor runs at once and takes no time. There are no sockets.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = _NoSelector(self)

    def time(self) -> float:
        return self._now

    def spend(self, seconds: float) -> None:
        """The running task computes for so long; meanwhile nothing else runs, as on a real loop."""
        self._now += seconds

    def run_in_executor(  # type: ignore[override]  # a future that is done, whatever the base class promises
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""


class _NoSelector:
    """Where a loop waits for its next timer; here that takes no time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise TimeStandsStill("all tasks wait for each other, nothing is scheduled. This is a bug.")
        self._loop.spend(timeout)
        return []

    def close(self) -> None:
        """Nothing is held."""
