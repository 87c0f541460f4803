"""The rules of other systems, for comparison in the simulated world.

Triton's dynamic batcher as its docs/user_guide/batcher.md says, BentoML's CorkDispatcher as its
src/bentoml/_internal/marshal/dispatcher.py does. Both know the service time from the start, where CORK's source begins
with guesses and a training phase.
"""

from collections import deque
from math import inf
from typing import cast

import numpy as np
from numpy.typing import NDArray

from worker.world import Job, Ranges, World, merged


class StaticTimer:
    """Triton: a batch is sent when it is full or its oldest row has waited for `delay_s`, and an instance is free."""

    def __init__(self, world: World, delay_s: float) -> None:
        self.name = f"timer {delay_s * 1e3:g} ms"
        self._world = world
        self._delay = delay_s
        self._waiting: deque[tuple[int, int, float]] = deque()  # rows, when they came
        self._rows = 0
        self._busy = False

    def arrived(self, first: int, deadlines: NDArray[np.float64], ranks: NDArray[np.intp], now: float) -> None:
        self._waiting.append((first, first + len(deadlines), now))
        self._rows += len(deadlines)

    def finished(self, job: Job, now: float) -> None:
        self._busy = False
        if job.ok:
            self._world.answer(job.rows, now)

    def step(self, now: float) -> float:
        if self._busy or not self._waiting:
            return inf
        most = self._world.scenario.max_batch
        due_at = self._waiting[0][2] + self._delay
        if self._rows < most and now < due_at:
            return due_at
        rows: Ranges = []
        room = most
        while room and self._waiting:
            start, stop, came = self._waiting.popleft()
            cut = min(stop, start + room)
            rows.append((start, cut))
            room -= cut - start
            if cut < stop:
                self._waiting.appendleft((cut, stop, came))
        self._rows -= most - room
        self._busy = True
        self._world.start(merged(rows), now)
        return inf


class Cork:
    """BentoML: waits while n * (wait of the newest + tick + a) <= 0.95 * the mean wait, cancels the oldest row when its
    predicted latency exceeds the budget, takes the newest rows, and looks once a tick of 1 ms while the slot is taken.
    """

    TICK_S = 0.001
    KEPT = 50
    REFRESH_S = 5.0

    def __init__(self, world: World) -> None:
        self.name = "CORK"
        self._world = world
        self._waiting: deque[int] = deque()
        self._came: deque[float] = deque()
        self._busy = False
        self._look_at = 0.0
        self._a, self._b = world.scenario.row_s, world.scenario.fixed_s
        self._wait = 0.01
        self._seen: deque[tuple[int, float, float]] = deque(maxlen=self.KEPT)
        self._refreshed = -inf

    def arrived(self, first: int, deadlines: NDArray[np.float64], ranks: NDArray[np.intp], now: float) -> None:
        if not self._waiting:
            self._look_at = now  # only an empty queue is woken by an arrival
        self._waiting.extend(range(first, first + len(deadlines)))
        self._came.extend([now] * len(deadlines))

    def finished(self, job: Job, now: float) -> None:
        self._busy = False
        if not job.ok:
            return
        self._world.answer(job.rows, now)
        self._seen.append((job.size, now - job.started, cast(float, job.note)))
        if now - self._refreshed >= self.REFRESH_S:
            self._refreshed = now
            sizes, seconds, waits = zip(*self._seen, strict=True)
            design = np.stack([np.array(sizes, dtype=np.float64), np.ones(len(sizes))], axis=1)
            a, b = np.linalg.lstsq(design, np.array(seconds), rcond=None)[0].tolist()
            self._a, self._b, self._wait = max(1e-6, a), max(0.0, b), sum(waits) / len(waits)

    def step(self, now: float) -> float:
        scenario = self._world.scenario
        while self._waiting and now >= self._look_at:
            rows, oldest = len(self._waiting), now - self._came[0]
            if rows > 1 and oldest + self._a * rows + self._b >= scenario.budget_s:
                self._drop_oldest()
            elif self._busy and rows == 1 and oldest >= scenario.budget_s:
                self._drop_oldest()
            elif self._busy or (
                rows < scenario.max_batch and rows * (now - self._came[-1] + self.TICK_S + self._a) <= 0.95 * self._wait
            ):
                self._look_at = now + self.TICK_S
            else:
                # The source compares with "<", so its batches hold one row less than the limit.
                taken = [self._waiting.pop() for _ in range(min(rows, max(1, scenario.max_batch - 1)))]
                came = [self._came.pop() for _ in taken]
                self._busy = True
                self._world.start(merged([(row, row + 1) for row in reversed(taken)]), now, note=now - came[-1])
        return self._look_at if self._waiting else inf

    def _drop_oldest(self) -> None:
        self._waiting.popleft()
        self._came.popleft()
