"""Sums over the last seconds, in slices: memory and cost do not depend on how much is counted."""

from collections.abc import Sequence
from math import floor

import numpy as np
from numpy.typing import NDArray


class Window:
    """Sums of `width` counters over the last `seconds`, forgotten one slice of `seconds / slices` at a time.

    Times are seconds of one monotonic clock. A time before the newest slice counts into the newest.
    """

    __slots__ = ("_at", "_rows", "_slice", "_total")

    def __init__(self, seconds: float, width: int, *, slices: int = 10) -> None:
        if seconds <= 0 or width < 1 or slices < 1:
            raise ValueError(f"seconds {seconds}, width {width} and slices {slices} must be positive")
        self._slice = seconds / slices
        self._rows: NDArray[np.float64] = np.zeros((slices, width))
        self._total: NDArray[np.float64] = np.zeros(width)
        self._at = 0

    def add(self, now: float, counts: Sequence[float] | NDArray[np.float64]) -> None:
        """Count `counts`, shape [width], at `now`."""
        self._turn(now)
        row = self._rows[self._at % len(self._rows)]
        np.add(row, counts, out=row)
        np.add(self._total, counts, out=self._total)

    def totals(self, now: float) -> NDArray[np.float64]:
        """Sums of what was counted in the window that ends at `now`, shape [width]. Not to be changed or kept."""
        self._turn(now)
        return self._total

    def clear(self) -> None:
        self._rows[:] = 0
        self._total[:] = 0

    def _turn(self, now: float) -> None:
        at = floor(now / self._slice)
        steps = at - self._at
        if steps <= 0:
            return
        slices = len(self._rows)
        for step in range(1, min(steps, slices) + 1):
            self._rows[(self._at + step) % slices] = 0
        self._at = at
        if steps < slices:
            # Summed anew rather than subtracted, so that no rounding error outlives its slice.
            np.sum(self._rows, axis=0, out=self._total)
        else:
            self._rows[:] = 0
            self._total[:] = 0
