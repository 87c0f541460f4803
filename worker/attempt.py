"""One batch at one engine: how long it is waited for, and what it teaches."""

import asyncio
import logging
from typing import Final

import numpy as np

from engines.base import Features, Scores
from engines.errors import DeviceLost, EngineError
from worker.clock import Clock
from worker.outcome import Overdue, Tier

log = logging.getLogger("scorelane.attempt")

HANG_FACTOR: Final = 10.0
"""A batch that takes this many times its predicted time is taken for hung."""
HANG_FLOOR_S: Final = 2.0
"""No batch is taken for hung before this, so that a busy machine's pause is not."""
PAUSE_S: Final = 0.1
"""A wait that lasts this much longer than it should was no wait: this process did not run, nor did the engine."""


class Attempt:
    """A device call cannot be cancelled: who stops waiting leaves it in work. Its speed is learned when it ends; if it
    does not within its patience, its session is left behind.

    The breaker is told once, by whichever is first: the end of the run, or who does not wait for it any longer. What is
    known after that is a late answer, neither a success nor a second failure.
    """

    def __init__(self, tier: Tier, features: Features, rows: int, generation: int | None, clock: Clock) -> None:
        """`generation`: what the tier's breaker admitted the batch under; None where the tier has none."""
        self._tier = tier
        self._features = features
        self._rows = rows
        self._generation = generation
        self._clock = clock
        self._started = clock.monotonic()
        self._patience = max(HANG_FLOOR_S, HANG_FACTOR * tier.service_time.predict(rows))

    async def run(self) -> Scores:
        """Scores, however long they take; none that is finite is a failure. Raises `EngineError`."""
        tier = self._tier
        tier.ran_at = self._started
        try:
            scores = await tier.runs.run(self._features)
        except DeviceLost:
            if tier.breaker is not None:
                tier.breaker.lose(self._clock.monotonic())
            raise
        except EngineError:
            self._failed()
            raise
        now = self._clock.monotonic()
        seconds = max(now - self._started, 0.0)
        tier.service_time.observe(self._rows, seconds)
        if not np.isfinite(scores).any():
            self._failed()
            return scores
        generation = self._unreported()
        if tier.breaker is not None and generation is not None:
            tier.breaker.succeeded(generation, self._rows, seconds, now)
        return scores

    async def answer(self, wait_s: float, tasks: asyncio.TaskGroup) -> Scores:
        """Scores within `wait_s`; `tasks` has what goes on. Raises `Overdue`, `TimeoutError` (hung), `EngineError`."""
        run = tasks.create_task(self._guarded())
        if await self._ends(run, min(wait_s, self._patience)):
            result = run.result()
            if isinstance(result, EngineError):
                raise result
            return result
        if wait_s < self._patience:
            self._failed()
            tasks.create_task(self._left_behind(run, self._patience - wait_s))
            raise Overdue(f"still in work after {wait_s * 1000:.1f} ms, the last moment for another engine")
        await self._retire(run)
        raise TimeoutError

    def shadow(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Run for what it teaches: nobody waits for the scores. The task is done when nothing of it goes on."""
        return tasks.create_task(self._left_behind(tasks.create_task(self._guarded()), self._patience))

    async def _guarded(self) -> Scores | EngineError:
        """The run as a task: what the engine raises is a result, so that it ends no task group."""
        try:
            return await self.run()
        except EngineError as error:
            return error

    async def _ends(self, run: asyncio.Task[Scores | EngineError], wait_s: float) -> bool:
        """Whether the run ends within `wait_s`, or within its patience after this process stood still."""
        started = self._clock.monotonic()
        done, _ = await asyncio.wait({run}, timeout=wait_s)
        if not done and self._clock.monotonic() - started > wait_s + PAUSE_S:
            done, _ = await asyncio.wait({run}, timeout=self._patience)
        return bool(done)

    async def _left_behind(self, run: asyncio.Task[Scores | EngineError], patience: float) -> None:
        if not await self._ends(run, patience):
            await self._retire(run)

    async def _retire(self, run: asyncio.Task[Scores | EngineError]) -> None:
        self._failed()
        run.cancel()
        log.error("engine %s: a batch did not come back; its session is left behind", self._tier.engine)
        await self._tier.hung()

    def _failed(self) -> None:
        generation = self._unreported()
        if self._tier.breaker is not None and generation is not None:
            self._tier.breaker.failed(generation, self._clock.monotonic())

    def _unreported(self) -> int | None:
        """The generation for who reports first, None for who comes after that."""
        generation, self._generation = self._generation, None
        return generation
