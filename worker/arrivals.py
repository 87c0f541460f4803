"""How many rows arrive a second: the Gamma posterior of a Poisson rate with exponential forgetting.

With a Gamma(alpha, beta) belief about the rate, k arrivals in t seconds make it Gamma(alpha + k, beta + t) (Gelman and
others, Bayesian Data Analysis, 2.6). Before each step both are multiplied by a factor below 1, so that what is older
than the memory is forgotten and the mean is kept (Harvey and Fernandes, Time series models for count or qualitative
observations, J. Business & Economic Statistics 7(4), 1989). A quantile of it is Wilson and Hilferty's cube (1931).
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil, exp, expm1, sqrt
from statistics import NormalDist
from typing import Final

from worker.service_time import ServiceTime

PRIOR_SHAPE: Final = 0.5
"""Shape of Jeffreys' prior of a Poisson rate."""

PRIOR_PART: Final = 0.01
"""Part of the memory that the prior counts for: the belief is proper before any arrival, and its pull is 1 %."""


class Arrivals:
    """Arrival rate of one lane, topic or class. Times are seconds of one monotonic clock."""

    __slots__ = ("_arrived", "_exposed", "_last", "_memory")

    def __init__(self, now: float, *, memory: float = 1.0) -> None:
        if not memory > 0:
            raise ValueError(f"memory: {memory} s: must be positive")
        self._memory = memory
        self._last = now
        self._arrived = 0.0
        self._exposed = 0.0

    def observe(self, rows: int, now: float) -> None:
        """`rows` arrived since the last call (0 is an observation too). A clock that went back counts as no time."""
        self._arrived, self._exposed = self._at(now)
        elapsed = max(0.0, now - self._last) / self._memory
        # Rows of a long interval arrived all through it, so they are as much forgotten as its seconds are.
        self._arrived += rows * (-expm1(-elapsed) / elapsed if elapsed > 1e-9 else 1.0)
        self._last = max(self._last, now)

    def rate(self, now: float) -> float:
        """Posterior mean, rows a second. Silence since the last arrival lowers it."""
        alpha, beta = self._posterior(now)
        return alpha / beta

    def upper(self, now: float, quantile: float = 0.95) -> float:
        """Rate that is not exceeded with probability `quantile`, given what has been seen."""
        alpha, beta = self._posterior(now)
        cube = 1 - 1 / (9 * alpha) + NormalDist().inv_cdf(quantile) / (3 * sqrt(alpha))
        return alpha / beta * max(0.0, cube) ** 3

    def _posterior(self, now: float) -> tuple[float, float]:
        arrived, exposed = self._at(now)
        return PRIOR_SHAPE + arrived, PRIOR_PART * self._memory + exposed

    def _at(self, now: float) -> tuple[float, float]:
        elapsed = max(0.0, now - self._last) / self._memory
        keep = exp(-elapsed)
        return self._arrived * keep, self._exposed * keep - self._memory * expm1(-elapsed)


def peak(times_ms: Sequence[float], *, memory: float = 1.0, quantile: float = 0.95) -> float:
    """Upper rate (events a second) at the busiest moment of recorded traffic, looked at ten times a `memory`.

    `times_ms` are the events' times in milliseconds, in any order. 0 for none.
    """
    if not len(times_ms):
        return 0.0
    step = memory / 10
    ticks = Counter(int(time_ms / 1000 // step) for time_ms in times_ms)
    first, last = min(ticks), max(ticks)
    arrivals = Arrivals(first * step, memory=memory)
    highest = 0.0
    for tick in range(first, last + 1):
        at = (tick + 1) * step
        arrivals.observe(ticks[tick], at)
        if tick - first >= 10 or tick == last:  # before that little is known, and the bound is far above the mean
            highest = max(highest, arrivals.upper(at, quantile))
    return highest


def batch_rows(service: ServiceTime, rate: float, budget: float, queued: int, most: int = 256) -> int:
    """Rows at which a batch is full: from 1 to `most`, at `rate` rows a second with `queued` rows waiting.

    At least what keeps up: batches of n rows serve n / (a + b * n) a second, which is `rate` at n = rate * a /
    (1 - rate * b). At least what waits, since those rows cost no filling time. At most what is scored in `budget`
    seconds once the rows still missing have arrived; that bound wins, because rows beyond it are late anyhow.
    """
    fixed = service.predict(1)
    each = max(0.0, service.predict(most) - fixed) / max(1, most - 1)
    fixed -= min(fixed, each)
    load = rate * each
    steady = rate * fixed / (1 - load) if load < 1 else most
    wanted = min(most, max(1, ceil(steady - 1e-6), queued))
    room = service.fits(budget, most)
    # queued + rate * t rows are there after t seconds, and n of them take predict(n): t + predict(n) <= budget.
    filled = int((queued + rate * max(0.0, budget - fixed)) / (1 + load)) if rate > 0 else queued
    return max(1, min(wanted, room, max(queued, filled)))
