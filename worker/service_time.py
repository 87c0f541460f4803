"""How long a batch of n rows will take: an online fit of `a + b * n` with a safety quantile.

Least squares over exponentially forgotten batches (Ljung, System Identification, 11.2), kept as five sums. The safety
margin is the running quantile of `seconds / fitted`, followed by stochastic approximation (Robbins and Monro, 1951) in
the logarithm, so that it needs no window and no unit.

Rules:
- One batch may be anything (a hang, a page fault). One off by more than `SUSPECT` times raises the margin by one step
  and is otherwise set aside: even clipped, it would shift the fit by which the next ones are judged.
- `CONFIRM` such batches in a row, all on one side, are no accident: the whole fit is scaled to their median at once.
- The batch sizes may be all the same. The slope is then held by the prior's, and the intercept takes the difference.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import median
from typing import Final, Self

SUSPECT: Final = 3.0
"""A batch that takes more than this times the fit, or less than its inverse, is not believed alone."""

CONFIRM: Final = 3
"""Suspect batches in a row that make a change of speed."""

FORGET: Final = 1 - 1 / 32
"""Weight that a batch keeps when the next one arrives: a memory of 32 batches."""

STEP: Final = 0.1
"""Step of the margin's logarithm. A batch above the margin raises it by `quantile * STEP`."""

MAX_MARGIN: Final = 10.0
SHORTEST: Final = 1e-6
"""Seconds below which a measured time is noise of the clock."""

PRIOR: Final = (1e-3, 10e-6)
"""Seconds a batch and seconds a row, before anything is known."""

PRIOR_SPREAD: Final = 0.05
"""The prior's slope weighs as much as a spread of batch sizes of this part of their mean."""


class ServiceTime:
    """Service time of one engine on one kind of session.

    `buckets`, when given, are the sizes that batches are padded to (a CUDA graph each): n then stands for the smallest
    bucket that holds it. `quantile` is the part of batches that shall not take longer than `predict` says.
    """

    __slots__ = (
        "_a",
        "_b",
        "_buckets",
        "_down",
        "_guess",
        "_margin",
        "_slope",
        "_suspects",
        "_t",
        "_up",
        "_w",
        "_x",
        "_xt",
        "_xx",
        "count",
    )

    def __init__(
        self, *, quantile: float = 0.95, buckets: Sequence[int] = (), prior: tuple[float, float] = PRIOR
    ) -> None:
        if not 0.5 <= quantile < 1:
            raise ValueError(f"quantile: {quantile}: must be at least 0.5 and below 1")
        if min(prior) < 0 or sum(prior) <= 0 or not all(map(isfinite, prior)):
            raise ValueError(f"prior: {prior}: seconds a batch and a row must be finite, not negative, not both 0")
        self.count = 0
        """Batches observed."""
        self._buckets = tuple(sorted(buckets))
        self._a, self._b = prior
        self._slope = self._b
        self._guess = True
        self._w = self._x = self._xx = self._t = self._xt = 0.0
        self._margin = 1.5
        self._up = 1 + STEP * quantile
        self._down = 1 / (1 + STEP * (1 - quantile))
        self._suspects: list[float] = []

    @classmethod
    def measured(
        cls, points: Iterable[tuple[int, float]], *, quantile: float = 0.95, buckets: Sequence[int] = ()
    ) -> Self:
        """Warm start from (rows, seconds) pairs, as a model package or a warm-up has them; none gives the prior."""
        points = list(points)
        if not points:
            return cls(quantile=quantile, buckets=buckets)
        smallest, largest = min(points), max(points)
        slope = (largest[1] - smallest[1]) / (largest[0] - smallest[0]) if largest[0] > smallest[0] else 0.0
        # The line through the extremes is only where the search starts; the points themselves make the fit.
        model = cls(quantile=quantile, buckets=buckets, prior=(max(smallest[1], SHORTEST), max(slope, 0.0)))
        for rows, seconds in points:
            model._learn(model._size(rows), max(seconds, SHORTEST))
        model._guess = False
        return model

    def predict(self, rows: int) -> float:
        """Seconds that a batch of `rows` will not exceed, at the safety quantile."""
        return (self._a + self._b * (self._size(rows) if self._buckets else rows)) * self._margin

    def expected(self, rows: int) -> float:
        """Seconds that a batch of `rows` takes by the fit, without the margin."""
        return self._a + self._b * self._size(rows)

    def fits(self, seconds: float, most: int) -> int:
        """Largest batch, at most `most` rows, whose prediction is within `seconds`; 0 when not even one row's is."""
        room = seconds / self._margin - self._a
        if not self._buckets:
            if self._b * most <= room:
                return most
            return int(room / self._b) if room > 0 else 0
        full = (most, *reversed(self._buckets[: bisect_left(self._buckets, most)]))
        return next((rows for rows in full if self._b * self._size(rows) <= room), 0)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a batch of `rows` that took `seconds` (for one that was left behind: the time waited for it).

        Raises `ValueError` for rows < 1 and for seconds that are negative or not finite.
        """
        if rows < 1 or not 0 <= seconds < float("inf"):
            raise ValueError(
                f"a batch of {rows} rows took {seconds} seconds: rows must be >= 1, seconds finite and >= 0"
            )
        if seconds < SHORTEST:
            seconds = SHORTEST
        size = self._size(rows) if self._buckets else rows
        fitted = self._a + self._b * size
        ratio = seconds / fitted
        self.count += 1
        if self._guess:
            # The prior is nobody's measurement: its shape stays, its scale is the first batch's.
            self._guess = False
            self._scale(ratio)
            self._learn(size, seconds)
            return
        self._margin = (
            min(MAX_MARGIN, self._margin * self._up) if ratio > self._margin else max(1.0, self._margin * self._down)
        )
        suspects = self._suspects
        if 1 / SUSPECT <= ratio <= SUSPECT:
            if suspects:
                suspects.clear()
            self._learn(size, seconds)
            return
        if suspects and (suspects[0] > 1) is not (ratio > 1):
            suspects.clear()
        suspects.append(ratio)
        if len(suspects) >= CONFIRM:
            self._scale(median(suspects))
            suspects.clear()
            self._learn(size, seconds)

    def _size(self, rows: int) -> int:
        """Rows that the device computes for a batch of `rows`."""
        if not self._buckets:
            return rows
        at = bisect_left(self._buckets, rows)
        return self._buckets[at] if at < len(self._buckets) else rows

    def _learn(self, size: int, seconds: float) -> None:
        w = self._w = self._w * FORGET + 1
        x = self._x = self._x * FORGET + size
        t = self._t = self._t * FORGET + seconds
        xx = self._xx = self._xx * FORGET + size * size
        xt = self._xt = self._xt * FORGET + size * seconds
        x /= w
        t /= w
        held = (PRIOR_SPREAD * x) ** 2
        spread = max(0.0, xx / w - x * x)
        b = max(0.0, (xt / w - x * t + held * self._slope) / (spread + held))
        a = t - b * x
        if a < 0:
            a, b = 0.0, t / x
        self._a, self._b = a, b

    def _scale(self, ratio: float) -> None:
        """Every batch takes `ratio` times as long from now on; what is known of the shape weighs little after that."""
        self._a *= ratio
        self._b *= ratio
        self._slope *= ratio
        keep = 4 / max(4.0, self._w)
        self._w *= keep
        self._x *= keep
        self._xx *= keep
        self._t *= keep * ratio
        self._xt *= keep * ratio
        self._margin = min(self._margin, 1.5)
