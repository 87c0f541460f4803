"""Open-loop load: event i is due at start + i / rate whatever happened to the events before it.

A sender that waits for answers would slow down with the system it measures and hide its latency; this one falls behind
openly, and the delay counts.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Times in seconds of any one clock, `rate` in events a second."""

    start: float
    rate: float

    def intended(self, index: int) -> float:
        """When event `index` (from 0) is due."""
        return self.start + index / self.rate

    def due(self, now: float) -> int:
        """Events that are due by `now`, the first one at `start` itself."""
        if now < self.start:
            return 0
        return math.floor((now - self.start) * self.rate + 1e-9) + 1
