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

from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import median
from typing import Final, Self

SUSPECT: Final = 3.0
"""A batch that takes more than this times the fit, or less than its inverse, is not believed alone."""

CONFIRM: Final = 3
"""Suspect batches in a row that make a change of speed."""

MEMORY: Final = 32
"""Batches that the fit remembers."""

STEP: Final = 0.1
"""Step of the margin's logarithm. A batch above the margin raises it by `quantile * STEP`."""

FIRST_MARGIN: Final = 1.5
MAX_MARGIN: Final = 10.0
SHORTEST: Final = 1e-6
"""Seconds below which a measured time is noise of the clock."""

PRIOR: Final = (1e-3, 10e-6)
"""Seconds a batch and seconds a row, before anything is known."""

REFRESH_S: Final = 0.25
"""Longest time that a usable engine goes without a batch while others are scored: a prediction that keeps all batches
away from it would never be found wrong."""

MEASURED_PART: Final = 0.25
"""Part of the memory that a warm start's measurements weigh."""

PRIOR_SPREAD: Final = 0.05
"""The prior's slope weighs as much as a spread of batch sizes of this part of their mean."""


class ServiceTime:
    """Service time of one engine on one kind of session.

    `quantile` is the part of batches that shall not take longer than `predict` says, `memory` the
    number of batches that the fit remembers: short to follow the engine, long to know what is normal for it.
    """

    __slots__ = (
        "_a",
        "_b",
        "_down",
        "_forget",
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
        self,
        *,
        quantile: float = 0.95,
        memory: int = MEMORY,
        prior: tuple[float, float] = PRIOR,
    ) -> None:
        if not 0.5 <= quantile < 1:
            raise ValueError(f"quantile: {quantile}: must be at least 0.5 and below 1")
        if memory < 2:
            raise ValueError(f"memory: {memory}: must be at least 2 batches")
        if min(prior) < 0 or sum(prior) <= 0 or not all(map(isfinite, prior)):
            raise ValueError(f"prior: {prior}: seconds a batch and a row must be finite, not negative, not both 0")
        self.count = 0
        """Batches observed."""
        self._a, self._b = prior
        self._slope = self._b
        self._guess = True
        self._forget = 1 - 1 / memory
        self._w = self._x = self._xx = self._t = self._xt = 0.0
        self._margin = FIRST_MARGIN
        self._up = 1 + STEP * quantile
        self._down = 1 / (1 + STEP * (1 - quantile))
        self._suspects: list[float] = []

    @classmethod
    def measured(
        cls,
        points: Iterable[tuple[int, float]],
        *,
        quantile: float = 0.95,
        memory: int = MEMORY,
    ) -> Self:
        """Warm start from (rows, seconds) pairs, as a model package or a warm-up has them; none gives the prior."""
        points = list(points)
        if not points:
            return cls(quantile=quantile, memory=memory)
        smallest, largest = min(points), max(points)
        slope = (largest[1] - smallest[1]) / (largest[0] - smallest[0]) if largest[0] > smallest[0] else 0.0
        # The line through the extremes is only where the search starts; the points themselves make the fit.
        prior = (max(smallest[1], SHORTEST), max(slope, 0.0))
        model = cls(quantile=quantile, memory=memory, prior=prior)
        for rows, seconds in points:
            model._learn(rows, max(seconds, SHORTEST))
        # Each measurement is many runs, not one: together they weigh as a good part of what the fit remembers.
        model._weigh(max(model._w, MEASURED_PART * memory))
        model._guess = False
        return model

    def start(self, points: Sequence[tuple[int, float]]) -> None:
        """Forget everything and begin with these measurements, as `measured` does, in the place that others look at."""
        begun = type(self).measured(points)
        for name in self.__slots__:
            setattr(self, name, getattr(begun, name))
        self.count = len(points)

    @property
    def known(self) -> bool:
        """False while nothing but the prior speaks."""
        return not self._guess

    @property
    def doubted(self) -> bool:
        """Whether the last batches were far off, and a few more will show that the speed has changed or has not."""
        return bool(self._suspects)

    def predict(self, rows: int) -> float:
        """Seconds that a batch of `rows` will not exceed, at the safety quantile."""
        return (self._a + self._b * rows) * self._margin

    def expected(self, rows: int) -> float:
        """Seconds that a batch of `rows` takes by the fit, without the margin."""
        return self._a + self._b * rows

    def fits(self, seconds: float, most: int) -> int:
        """Largest batch, at most `most` rows, whose prediction is within `seconds`; 0 when not even one row's is."""
        room = seconds / self._margin - self._a
        if self._b * most <= room:
            return most
        return int(room / self._b) if room > 0 else 0

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
        fitted = self._a + self._b * rows
        ratio = seconds / fitted
        self.count += 1
        if self._guess:
            # The prior is nobody's measurement: its shape stays, its scale is the first batch's.
            self._guess = False
            self._scale(ratio)
            self._learn(rows, seconds)
            return
        self._margin = (
            min(MAX_MARGIN, self._margin * self._up) if ratio > self._margin else max(1.0, self._margin * self._down)
        )
        suspects = self._suspects
        if 1 / SUSPECT <= ratio <= SUSPECT:
            if suspects:
                suspects.clear()
            self._learn(rows, seconds)
            return
        if suspects and (suspects[0] > 1) is not (ratio > 1):
            suspects.clear()
        suspects.append(ratio)
        if len(suspects) >= CONFIRM:
            self._scale(median(suspects))
            suspects.clear()
            self._learn(rows, seconds)

    def _learn(self, rows: int, seconds: float) -> None:
        forget = self._forget
        w = self._w = self._w * forget + 1
        x = self._x = self._x * forget + rows
        t = self._t = self._t * forget + seconds
        xx = self._xx = self._xx * forget + rows * rows
        xt = self._xt = self._xt * forget + rows * seconds
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
        self._t *= ratio
        self._xt *= ratio
        self._weigh(min(self._w, 4.0))
        self._margin = min(self._margin, FIRST_MARGIN)

    def _weigh(self, batches: float) -> None:
        """What the sums hold counts as so many batches from now on."""
        if self._w:
            factor = batches / self._w
            self._w *= factor
            self._x *= factor
            self._xx *= factor
            self._t *= factor
            self._xt *= factor
