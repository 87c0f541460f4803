"""What became of a batch, and the engines that it was given to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import compress
from math import inf
from typing import Final, Protocol

import numpy as np

from engines.base import Features, Scores
from engines.errors import RunError
from schemas.errors import InvalidEvent
from worker.batch import Batch
from worker.breakers import LaneBreaker
from worker.service_time import ServiceTime

NO_SCORES: Final[Scores] = np.empty(0, np.float32)
SKIPPED: Final = "none"
"""Engine of an outcome that is published without a score."""


class Runs(Protocol):
    """A session in service."""

    @property
    def warm(self) -> bool:
        """False while there is no session yet (loading) or none any more."""

    @property
    def inline(self) -> bool:
        """True when `run` neither waits nor can hang."""

    async def run(self, features: Features) -> Scores: ...

    async def back(self) -> bool:
        """Wait for a session that is being opened in place of a hung one. Whether there is one now."""


class Overdue(RunError):
    """The batch is still in work at the last moment when another engine can answer in time."""


class Absent(RunError):
    """Nobody has looked at the batch: there is no session for it, or the breaker refuses it."""


@dataclass(slots=True)
class Tier:
    """One engine of the chain, as one lane uses it."""

    engine: str
    """As it stands in the scores."""
    model: str
    version: str
    runs: Runs
    service_time: ServiceTime
    hung: Callable[[], Awaitable[None]]
    """Called when the tier's session was left behind: retires it and opens another one."""
    breaker: LaneBreaker | None = None
    """None for the last engine of a chain: there is nobody to answer in its place."""
    ran_at: float = -inf
    """Monotonic second of its last batch."""
    shadow: asyncio.Task[None] | None = None
    """The last copy of a batch that it was given."""


@dataclass(slots=True)
class Outcome:
    """Scores from one engine, or none: skipped with a marker, or refused into the dead letters."""

    batch: Batch
    scores: Scores
    """[n] float32; empty when skipped or refused."""
    engine: str
    model: str
    version: str
    reason: str | None
    """Why it was not the primary engine, None when it was."""
    scored_at: float
    """Monotonic seconds."""
    service_s: float
    """From closing the batch to its scores, failed attempts included."""
    refused: InvalidEvent | None = None

    def owned(self) -> Outcome:
        """Without the segments of partitions that were given up: their next owner scores them."""
        segments = self.batch.segments
        owned = [not segment.chunk.fenced() for segment in segments]
        if all(owned):
            return self
        rows = np.repeat(owned, [segment.stop - segment.start for segment in segments])
        return replace(
            self,
            batch=replace(self.batch, segments=list(compress(segments, owned))),
            scores=self.scores[rows] if len(self.scores) else self.scores,
        )


def unscored(batch: Batch, policy: str, reason: str, now: float, started: float) -> Outcome:
    """An outcome without scores: skipped with a marker, or refused into the dead letters."""
    refused = None
    if policy == "dead_letter":
        refused = InvalidEvent("late" if reason.startswith("late") else "shed", f"not scored: {reason}")
    return Outcome(batch, NO_SCORES, SKIPPED, "", "", reason, now, now - started, refused)
