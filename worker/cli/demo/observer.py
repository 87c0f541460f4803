"""What comes back: the scores of all topics, each exactly once, and how long each took."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from schemas.score import Score
from worker.cli.demo.latency import Latencies
from worker.cli.scores import ScoreReader, Tally


class Observed:
    """Scores of one topic. The delay counts from when the event was due, not from when it was sent."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.latency = Latencies()
        self.duplicates = 0
        self._next: dict[tuple[str, int], int] = defaultdict(int)

    def add(self, score: Score | None, now_ms: float) -> None:
        if score is not None:
            source = (score.topic, score.partition)
            # Scores of a partition come in its order, so that an offset seen before is a repetition.
            if score.offset < self._next[source]:
                self.duplicates += 1
                return
            self._next[source] = score.offset + 1
            self.latency.add(now_ms - score.event_time_ms)
        self.tally.add(score)


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
