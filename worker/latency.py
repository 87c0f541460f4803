"""Mean and quantiles of the latencies of the last seconds, whole batches at a time."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.window import Window

SHORTEST_S: Final = 1e-4
PER_OCTAVE: Final = 8
OCTAVES: Final = 20
BUCKETS: Final = PER_OCTAVE * OCTAVES + 2
"""From 0.1 ms to 105 s in steps of 9 %; the first bucket holds what is shorter, the last what is longer."""


class Latencies:
    """Sliding histogram with logarithmic buckets: quantiles are exact to 9 %, whatever the number of rows."""

    def __init__(self, window_s: float, *, slices: int = 10) -> None:
        self._window = Window(window_s, BUCKETS + 1, slices=slices)  # the last counter is the sum of seconds

    def add(self, seconds: NDArray[np.float64], now: float) -> None:
        """Count latencies, shape [n]; negative ones (clocks that differ) count as 0."""
        seconds = np.maximum(seconds, 0.0)
        steps = np.log2(np.maximum(seconds, SHORTEST_S / 2) / SHORTEST_S) * PER_OCTAVE
        buckets = np.clip(np.floor(steps) + 1, 0, BUCKETS - 1).astype(np.intp)
        counts = np.bincount(buckets, minlength=BUCKETS + 1).astype(np.float64)
        counts[BUCKETS] = seconds.sum()
        self._window.add(now, counts)

    def count(self, now: float) -> int:
        return int(self._window.totals(now)[:BUCKETS].sum())

    def mean(self, now: float) -> float:
        """Seconds, 0 when nothing was counted."""
        totals = self._window.totals(now)
        count = totals[:BUCKETS].sum()
        return float(totals[BUCKETS] / count) if count else 0.0

    def quantile(self, q: float, now: float) -> float:
        """Seconds that a part `q` of the latencies does not exceed, interpolated in its bucket; 0 for none."""
        cumulative = np.cumsum(self._window.totals(now)[:BUCKETS])
        if not cumulative[-1]:
            return 0.0
        target = q * cumulative[-1]
        bucket = int(np.searchsorted(cumulative, target))
        below = cumulative[bucket - 1] if bucket else 0.0
        inside = (target - below) / (cumulative[bucket] - below)
        return float(SHORTEST_S * 2.0 ** ((bucket - 1 + inside) / PER_OCTAVE))
