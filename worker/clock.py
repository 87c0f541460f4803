"""Time as an argument: the system's clocks, or one that a test moves by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds of a clock that never jumps; only differences mean something."""

    def wall_ms(self) -> float:
        """Milliseconds since the epoch; may jump."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> float:
        return time.time() * 1000.0
