"""The batching rules of other systems, in the place of the worker's own batcher.

Triton's dynamic batcher as its docs/user_guide/batcher.md says, BentoML's CorkDispatcher as its
src/bentoml/_internal/marshal/dispatcher.py does. CORK is given the worker's own fit of the service time, where its
source begins with guesses and learns every 5 s.
"""

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from worker.batch import Batch, Chunk, ClosedBy, Segment
from worker.batcher import Batcher
from worker.edf import ranges


class StaticTimer(Batcher):
    """Triton: a batch is sent when it is full or its oldest row has waited for `DELAY_S`, and an instance is free."""

    DELAY_S: ClassVar[float]

    @property
    def due_at(self) -> float:
        return self.oldest + self.DELAY_S if self.rows else super().due_at

    def closes(self, now: float, *, idle: bool, draining: bool = False) -> ClosedBy | None:
        return super().closes(now, idle=False, draining=draining)

    def _enough(self, now: float) -> int:
        return self.max_batch


class Timer1ms(StaticTimer):
    DELAY_S = 0.001


class Timer5ms(StaticTimer):
    DELAY_S = 0.005


class Cork(Batcher):
    """BentoML: waits while n * (wait of the newest + tick + a) <= 0.95 * the mean wait, cancels the oldest row when its
    predicted latency exceeds the budget, takes the newest rows, and looks once a tick of 1 ms.
    """

    TICK_S = 0.001
    KEPT = 50
    REFRESH_S = 5.0
    BUDGET_S = 0.050

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rows: deque[tuple[Chunk, int, float]] = deque()  # the oldest first, with the time it came
        self._wait = 0.01
        self._waits: deque[float] = deque(maxlen=self.KEPT)
        self._refreshed = -np.inf
        self._look_at = 0.0

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> bool:
        return bool(self._rows)

    @property
    def oldest(self) -> float:
        return self._rows[0][2] if self._rows else np.inf

    @property
    def due_at(self) -> float:
        return self._look_at if self._rows else np.inf

    def offer(self, chunk: Chunk, ranks: int | NDArray[np.intp], now: float) -> list[Batch]:
        if not self._rows:
            self._look_at = now  # only an empty queue is woken by an arrival
        self._rows.extend((chunk, row, now) for row in range(len(chunk.rows)))
        return []

    def expire(self, now: float) -> list[Batch]:
        fixed, each = self._line()
        dropped = []
        while len(self._rows) > 1 and now - self.oldest + each * len(self._rows) + fixed >= self.BUDGET_S:
            dropped.append(self._rows.popleft())
        return [Batch(_segments(dropped), "shed", "skip", "timeout")] if dropped else []

    def closes(self, now: float, *, idle: bool, draining: bool = False) -> ClosedBy | None:
        if not self._rows or now < self._look_at:
            return None
        rows = len(self._rows)
        _, each = self._line()
        if rows >= self.max_batch:
            return "full"
        if rows * (now - self._rows[-1][2] + self.TICK_S + each) <= 0.95 * self._wait and not draining:
            self._look_at = now + self.TICK_S
            return None
        return "due"

    def take(self, closed_by: ClosedBy, now: float) -> Batch:
        # The source compares with "<", so its batches hold one row less than the limit.
        taken = [self._rows.pop() for _ in range(min(len(self._rows), max(1, self.max_batch - 1)))]
        self._waits.append(now - taken[-1][2])
        if now - self._refreshed >= self.REFRESH_S:
            self._refreshed = now
            self._wait = sum(self._waits) / len(self._waits)
        return Batch(_segments(taken), closed_by)

    def _line(self) -> tuple[float, float]:
        one, full = self._scoring.expected(1), self._scoring.expected(self.max_batch)
        each = max(0.0, full - one) / max(1, self.max_batch - 1)
        return max(0.0, one - each), each


def _segments(rows: Sequence[tuple[Chunk, int, float]]) -> list[Segment]:
    ordered = sorted(rows, key=lambda row: (row[2], id(row[0]), row[1]))
    segments = []
    for _, group in groupby(ordered, key=lambda row: id(row[0])):
        found = list(group)
        indices = np.array([row for _, row, _ in found], dtype=np.int64)
        segments += [Segment(found[0][0], start, stop) for start, stop in ranges(indices)]
    return segments
