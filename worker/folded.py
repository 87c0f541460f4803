"""Many like events in one line of the log. Pure: given now, says what is to be told."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True)
class Since[E]:
    """What came since the last line, the first of it at `began` (monotonic seconds)."""

    began: float
    example: E
    """Of the first."""
    counts: Counter[str] = field(default_factory=Counter)


class Folded[K: Hashable, E]:
    """At most one line a key in `interval_s`. The first is told at once, what follows is counted until the next.

    Memory is bounded by the keys and the names of counts, which have to be closed sets.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._since: dict[K, Since[E]] = {}
        self._told: dict[K, float] = {}

    def add(self, key: K, now: float, counts: Mapping[str, int], example: E) -> None:
        """Something happened. `example` is kept when it is the first since the last line."""
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = Since(now, example)
        since.counts.update(counts)

    def beside(self, key: K, counts: Mapping[str, int]) -> None:
        """Count what matters only beside something that happened and is not told yet."""
        if key in self._since:
            self._since[key].counts.update(counts)

    def due(self, now: float, *, ending: bool = False) -> list[tuple[K, Since[E]]]:
        """What is to be told now, and is forgotten with that; `ending`: whenever the last line was."""
        due = [key for key in self._since if ending or now - self._told.get(key, -inf) >= self._interval_s]
        self._told.update(dict.fromkeys(due, now))
        return [(key, self._since.pop(key)) for key in due]
