"""The clocks of a replay: the loop's time, and a wall clock that jumps where the script says so."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from worker.replay.faults import Fault
from worker.replay.virtual_loop import VirtualLoop

BEFORE_S: Final = 1e6
"""Until `begin` it is so long before second 0 that nothing scripted happens."""


class ReplayClock:
    """A `worker.clock.Clock` of the running loop. Its scripted times count from `begin`."""

    def __init__(self, start_wall_ms: float, faults: Sequence[Fault] = ()) -> None:
        """The wall clock shows `start_wall_ms` at `begin`."""
        self._loop = asyncio.get_running_loop()
        self._start_wall_ms = start_wall_ms
        self._jumps = [(fault.start_s, fault.amount * 1000.0) for fault in faults if fault.kind == "jump"]
        self._origin = self.monotonic() + BEFORE_S

    def begin(self) -> None:
        """Now is second 0 of the replay."""
        self._origin = self.monotonic()

    def monotonic(self) -> float:
        # The loop's own time may be rounded to milliseconds (uvloop), so only simulated time is asked for there.
        return self._loop.time() if isinstance(self._loop, VirtualLoop) else time.monotonic()

    def wall_ms(self) -> float:
        elapsed = self.elapsed
        return self._start_wall_ms + elapsed * 1000.0 + sum(ms for at, ms in self._jumps if at <= elapsed)

    @property
    def elapsed(self) -> float:
        """Seconds since `begin`, those of the producers' clocks: no jumps."""
        return self.since(self.monotonic())

    def since(self, monotonic: float) -> float:
        """Second of the replay of a monotonic second."""
        return monotonic - self._origin

    def at(self, elapsed: float) -> float:
        """Monotonic second of a second of the replay."""
        return self._origin + elapsed

    def spend(self, seconds: float) -> None:
        """Compute for so long. In real time nothing is spent: what computes there takes its own time."""
        if seconds > 0 and isinstance(self._loop, VirtualLoop):
            self._loop.spend(seconds)
