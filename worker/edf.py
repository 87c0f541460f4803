"""Waiting rows of one class, earliest deadline first. Pure; works on arrays, a chunk at a time."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

GRAIN_S: Final = 0.001
"""Deadlines closer than this count as equal, so that interleaved chunks are taken in pieces and not row by row."""


class Pick[T](NamedTuple):
    """Rows of one source (a chunk): row indices, ascending, each at most once."""

    source: T
    rows: NDArray[np.int64]

    def ranges(self) -> list[tuple[int, int]]:
        """The rows as half-open ranges [start, stop), ascending: one for what came in order."""
        return ranges(self.rows)


def ranges(rows: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ascending indices as half-open ranges [start, stop)."""
    if not len(rows):
        return []
    if int(rows[-1] - rows[0]) == len(rows) - 1:
        return [(int(rows[0]), int(rows[-1]) + 1)]
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = rows[np.concatenate(([0], cuts))]
    stops = rows[np.concatenate((cuts - 1, [len(rows) - 1]))] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


@dataclass(slots=True, eq=False)
class Run[T]:
    """What is left of one offer, in the order of its due times."""

    source: T
    rows: NDArray[np.int64]
    dues: NDArray[np.float64]
    row_bytes: float
    admitted_at: float


class EarliestFirst[T]:
    """A queue of rows by due time: the deadline, but at most `now + timeout` at the offer, which late rows have too.

    That is what bounds the wait: a row offered at t is overtaken only by rows offered before t + timeout, however
    late or tight the deadlines of those that follow.
    """

    def __init__(self, timeout_s: float) -> None:
        self.rows = 0
        self.nbytes = 0.0
        self._timeout = timeout_s
        self._runs: dict[int, Run[T]] = {}  # in the order of their offers
        self._heap: list[tuple[float, int]] = []  # (due time of the first row left, run); runs may be gone already
        self._next = 0

    def offer(
        self, source: T, rows: NDArray[np.int64], deadlines: NDArray[np.float64], row_bytes: float, now: float
    ) -> None:
        """Admit `rows` of `source` with their `deadlines` (same length, monotonic seconds), `row_bytes` each."""
        if not len(rows):
            return
        latest = now + self._timeout
        # What is late already has nothing more to lose: it waits behind the rows that have.
        dues = np.where(deadlines < now, latest, np.minimum(deadlines, latest))
        if (dues[1:] < dues[:-1]).any():
            order = np.argsort(dues, kind="stable")
            rows, dues = rows[order], dues[order]
        self._runs[self._next] = Run(source, rows, dues, row_bytes, now)
        heappush(self._heap, (float(dues[0]), self._next))
        self._next += 1
        self.rows += len(rows)
        self.nbytes += len(rows) * row_bytes

    @property
    def earliest(self) -> float:
        """Due time of the first row, infinity when nothing waits."""
        self._tidy()
        return self._heap[0][0] if self._heap else np.inf

    @property
    def oldest(self) -> float:
        """When the longest waiting row was offered, infinity when nothing waits."""
        return next((run.admitted_at for run in self._runs.values()), np.inf)

    def take(self, most: int) -> list[Pick[T]]:
        """The `most` rows that are due first (to within `GRAIN_S`), one pick a source and offer."""
        taken: dict[int, list[NDArray[np.int64]]] = {}
        sources: dict[int, T] = {}
        while most > 0:
            self._tidy()
            if not self._heap:
                break
            _, number = heappop(self._heap)
            run = self._runs[number]
            self._tidy()
            limit = self._heap[0][0] + GRAIN_S if self._heap else np.inf
            count = min(most, int(np.searchsorted(run.dues, limit, side="right")))
            taken.setdefault(number, []).append(run.rows[:count])
            sources[number] = run.source
            most -= count
            self._keep(number, count, len(run.rows))
            if number in self._runs:
                heappush(self._heap, (float(run.dues[0]), number))
        return [Pick(sources[number], np.sort(np.concatenate(parts))) for number, parts in taken.items()]

    def drop_last(self, count: int) -> list[Pick[T]]:
        """Remove and return the `count` rows that are due last."""
        count = min(count, self.rows)
        if count <= 0:
            return []
        dues = np.concatenate([run.dues for run in self._runs.values()])
        limit = np.partition(dues, len(dues) - count)[len(dues) - count]
        equal = count - int((dues > limit).sum())  # rows due at the limit itself that must go too
        picks = []
        for number, run in reversed(list(self._runs.items())):
            later = int(np.searchsorted(run.dues, limit, side="right"))
            at_limit = min(equal, later - int(np.searchsorted(run.dues, limit, side="left")))
            equal -= at_limit
            stop = later - at_limit
            if stop < len(run.rows):
                picks.append(Pick(run.source, np.sort(run.rows[stop:])))
                self._keep(number, 0, stop)
        return picks

    def expire(self, now: float) -> list[Pick[T]]:
        """Remove and return the rows that were offered `timeout_s` ago or earlier."""
        picks = []
        for number, run in list(self._runs.items()):
            if now < run.admitted_at + self._timeout:
                break
            picks.append(Pick(run.source, np.sort(run.rows)))
            self._keep(number, 0, 0)
        return picks

    def drop_due(self, limit: float) -> list[Pick[T]]:
        """Remove and return the rows that are due at `limit` or before."""
        picks: list[Pick[T]] = []
        while True:
            self._tidy()
            if not self._heap or self._heap[0][0] > limit:
                return picks
            _, number = heappop(self._heap)
            run = self._runs[number]
            count = int(np.searchsorted(run.dues, limit, side="right"))
            picks.append(Pick(run.source, np.sort(run.rows[:count])))
            self._keep(number, count, len(run.rows))
            if number in self._runs:
                heappush(self._heap, (float(run.dues[0]), number))

    def _keep(self, number: int, start: int, stop: int) -> None:
        """Only rows [start, stop) of the run stay. A changed first row is for the caller to put on the heap."""
        run = self._runs[number]
        gone = len(run.rows) - (stop - start)
        self.rows -= gone
        self.nbytes -= gone * run.row_bytes
        if start == stop:
            del self._runs[number]
            if not self._runs:
                self.nbytes = 0.0  # no rounding error outlives the rows
            if len(self._heap) > 2 * len(self._runs) + 16:
                self._heap = [entry for entry in self._heap if entry[1] in self._runs]
                heapify(self._heap)
        else:
            run.rows, run.dues = run.rows[start:stop], run.dues[start:stop]

    def _tidy(self) -> None:
        while self._heap and self._heap[0][1] not in self._runs:
            heappop(self._heap)
