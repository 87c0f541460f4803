"""How many events each user (streamer, room, ...) had lately: who is in the long tail. Pure."""

import numpy as np
from numpy.typing import NDArray

RESCALE_AT = 2.0**40


class Activity:
    """Decayed event counts per id, `size` of them: larger ids share a count modulo `size`, which can only raise it.

    All counts halve every `half_life_s`. The decay is kept in the weight of new events, so that time costs nothing.
    """

    def __init__(self, size: int, half_life_s: float = 7 * 86_400.0) -> None:
        if size < 1 or not half_life_s > 0:
            raise ValueError(f"size {size} and half_life_s {half_life_s} must be positive")
        self._counts: NDArray[np.float64] = np.zeros(size)
        self._half_life = half_life_s
        self._weight = 1.0
        self._last: float | None = None

    def see(self, ids: NDArray[np.generic], now: float) -> None:
        """Count one event for each of `ids`, integers [n]; an id that stands there twice has two."""
        self._age(now)
        np.add.at(self._counts, ids.astype(np.int64) % len(self._counts), self._weight)

    def counts(self, ids: NDArray[np.generic], now: float) -> NDArray[np.float64]:
        """Decayed number of events of each of `ids`, [n]."""
        self._age(now)
        return np.asarray(self._counts[ids.astype(np.int64) % len(self._counts)] / self._weight)

    def _age(self, now: float) -> None:
        if self._last is not None and now > self._last:
            grown = (now - self._last) / self._half_life
            if grown > 1000:
                self._counts[:] = 0.0
            else:
                self._weight *= 2.0**grown
        self._last = now if self._last is None else max(self._last, now)
        if self._weight > RESCALE_AT:
            self._counts /= self._weight
            self._weight = 1.0
