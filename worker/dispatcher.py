"""Which engine scores a batch, and what happens when it cannot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from engines.base import Features, Scores
from engines.errors import EngineError
from schemas.errors import InvalidEvent
from worker.batch import Batch
from worker.clock import Clock
from worker.service_time import ServiceTime

log = logging.getLogger("scorelane.dispatcher")

HANG_FACTOR: Final = 10.0
"""A batch that takes this many times its predicted time is taken for hung."""
HANG_FLOOR_S: Final = 2.0
"""No batch is taken for hung before this, so that a busy machine's pause is not."""

NO_SCORES: Final[Scores] = np.empty(0, np.float32)


class Runs(Protocol):
    async def run(self, features: Features) -> Scores: ...


@dataclass(slots=True)
class Tier:
    """One engine of the chain, as one lane uses it."""

    engine: str
    version: str
    runs: Runs
    service_time: ServiceTime
    hung: Callable[[], Awaitable[None]]
    """Called when the tier's session was left behind: retires it and opens another one."""


@dataclass(slots=True)
class Outcome:
    """What became of a batch: scores from one engine, or the one row that none could score."""

    batch: Batch
    scores: Scores
    """[n] float32; empty when refused."""
    engine: str
    version: str
    reason: str | None
    """Why it was not the primary engine, None when it was."""
    scored_at: float
    """Monotonic seconds."""
    service_s: float
    """From closing the batch to its scores, failed attempts included."""
    refused: InvalidEvent | None = None


class Dispatcher:
    """Sends a batch down the chain of engines until one answers.

    A failure of an engine sends the whole batch to the next one. When all have failed the batch is halved until the
    row is alone that they refuse; that row is refused and its neighbours get their scores.
    """

    def __init__(self, tiers: Sequence[Tier], clock: Clock) -> None:
        self._tiers = tiers
        self._clock = clock

    async def score(self, batch: Batch) -> list[Outcome]:
        """Outcomes in the order of the batch's rows."""
        started = self._clock.monotonic()
        if not len(batch):
            return [Outcome(batch, NO_SCORES, "", "", None, started, 0.0)]
        features = batch.features()
        reason: str | None = None
        for tier in self._tiers:
            try:
                scores = await self._run(tier, features, len(batch))
                if np.isfinite(scores).all():
                    now = self._clock.monotonic()
                    return [Outcome(batch, scores, tier.engine, tier.version, reason, now, now - started)]
                failure = f"{int((~np.isfinite(scores)).sum())} of {len(batch)} scores are not finite"
                reason = reason or f"{tier.engine}:not_finite"
            except TimeoutError:
                failure = "the batch did not come back in time; its session was left behind"
                reason = reason or f"{tier.engine}:hung"
                await tier.hung()
            except EngineError as error:
                failure = f"{type(error).__name__}: {error}"
                reason = reason or f"{tier.engine}:error"
            log.warning("engine %s failed on a batch of %d rows: %s", tier.engine, len(batch), failure)
        if len(batch) == 1:
            refused = InvalidEvent("unscorable", f"no engine could score it; the last said: {failure}")
            now = self._clock.monotonic()
            return [Outcome(batch, NO_SCORES, "", "", reason, now, now - started, refused)]
        left, right = batch.split()
        return [*await self.score(left), *await self.score(right)]

    async def _run(self, tier: Tier, features: Features, rows: int) -> Scores:
        started = self._clock.monotonic()
        patience = max(HANG_FLOOR_S, HANG_FACTOR * tier.service_time.predict(rows))
        async with asyncio.timeout(patience):
            scores = await tier.runs.run(features)
        tier.service_time.observe(rows, max(self._clock.monotonic() - started, 0.0))
        return scores
