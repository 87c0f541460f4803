"""Percentiles in bounded memory: counts in steps of 2 %."""

import math
from collections import Counter, deque

_STEP = math.log(1.02)
_LEAST_MS = 0.1


class Percentiles:
    """Milliseconds, with percentiles that are at most 2 % too high, of everything and of the last few seconds."""

    def __init__(self, window: int = 5) -> None:
        self._all: Counter[int] = Counter()
        self._recent: deque[Counter[int]] = deque([Counter()], maxlen=window)

    def add(self, milliseconds: float) -> None:
        step = 0 if milliseconds <= _LEAST_MS else math.ceil(math.log(milliseconds / _LEAST_MS) / _STEP)
        self._all[step] += 1
        self._recent[-1][step] += 1

    def second(self) -> None:
        """Begin the next second of the window."""
        self._recent.append(Counter())

    def percentile(self, p: float, *, recent: bool = False) -> float:
        """Milliseconds that p % of the values do not exceed, NaN without values."""
        counts = sum(self._recent, Counter()) if recent else self._all
        wanted = p / 100 * counts.total()
        seen = 0
        for step in sorted(counts):
            seen += counts[step]
            if seen >= wanted:
                return _LEAST_MS * math.exp(step * _STEP)
        return math.nan
