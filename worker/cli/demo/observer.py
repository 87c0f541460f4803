"""What comes back: the scores of all topics, each exactly once, and how long each took."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from schemas.score import Score
from worker.cli.demo.percentiles import Percentiles
from worker.cli.scores import ScoreCounts, ScoreReader


class Seen:
    """Which offsets of one partition have been seen: all below `next`, and those in a set beyond it.

    Scores come in the order of their events but for those that a fallback engine answered first, so the set stays
    small.
    """

    __slots__ = ("_beyond", "_next")

    def __init__(self) -> None:
        self._next = 0
        self._beyond: set[int] = set()

    def add(self, offset: int) -> bool:
        """False when the offset was seen before."""
        if offset < self._next or offset in self._beyond:
            return False
        self._beyond.add(offset)
        while self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1
        return True


class Observed:
    """Scores of one topic. The delay counts from when the event was due, not from when it was sent."""

    def __init__(self) -> None:
        self.counts = ScoreCounts()
        self.latency = Percentiles()
        self.duplicates = 0
        self._seen: defaultdict[tuple[str, int], Seen] = defaultdict(Seen)

    def add(self, score: Score | None, now_ms: float) -> None:
        if score is not None:
            if not self._seen[score.topic, score.partition].add(score.offset):
                self.duplicates += 1
                return
            self.latency.add(now_ms - score.event_time_ms)
        self.counts.add(score)


async def observe(consumer: Any, observed: Mapping[str, Observed], stop: asyncio.Event) -> None:
    """Read scores until `stop`. `observed` is by topic of the scores."""
    reader = ScoreReader()
    while not stop.is_set():
        polled = await consumer.getmany(timeout_ms=200)
        now_ms = time.time() * 1000
        for partition, records in polled.items():
            into = observed[partition.topic]
            for record in records:
                into.add(reader.read(record.value), now_ms)
        # Lets the next fetch go out before the next chunk is looked at.
        await asyncio.sleep(0)
