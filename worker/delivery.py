"""From outcomes to published messages: scores and dead letters of one topic, and their count."""

from collections import defaultdict

import numpy as np

from schemas.dead_letter import DeadLetter
from schemas.errors import InvalidEvent
from worker.batch import Record, Segment
from worker.clock import Clock
from worker.config import TopicConfig
from worker.dispatcher import Outcome
from worker.metrics import Metrics
from worker.publisher import Delivery, Message, Publisher
from worker.scores import ScoreEncoder


class DeliveryDesk:
    """Publishes what became of one topic's batches.

    A score goes to the partition that its event came from, under the event's key, so the scores of a partition keep
    its order. Segments of a partition that is no longer ours are left out: its new owner scores them.
    """

    def __init__(
        self,
        config: TopicConfig,
        *,
        publisher: Publisher,
        encoder: ScoreEncoder,
        dead_letter_max_bytes: int,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._config = config
        self._publisher = publisher
        self._encoder = encoder
        self._dead_letter_max_bytes = dead_letter_max_bytes
        self._metrics = metrics
        self._clock = clock

    async def publish(self, outcomes: list[Outcome]) -> list[Delivery]:
        """Queue everything; the deliveries are to be awaited before a segment is settled. Raises `PublishFailed`."""
        scores: defaultdict[int, list[Message]] = defaultdict(list)
        dead: defaultdict[int, list[Message]] = defaultdict(list)
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        for outcome in outcomes:
            row = 0
            for segment in outcome.batch.segments:
                rows = segment.stop - segment.start
                if not segment.chunk.fenced():
                    partition = segment.chunk.partition
                    dead[partition] += self._dead_letters(segment, outcome.refused)
                    if outcome.refused is None and rows:
                        scores[partition] += self._scores(segment, outcome, row, now, wall_ms)
                row += rows
        deliveries = []
        for topic, by_partition in ((self._config.scores, scores), (self._config.dead_letters, dead)):
            for partition, messages in by_partition.items():
                if messages:
                    deliveries.append(await self._publisher.send(topic, partition, messages))
        return deliveries

    def acknowledged(self, outcomes: list[Outcome], publish_s: float) -> None:
        """Count a batch whose messages the brokers have."""
        metrics, topic = self._metrics, self._config.name
        wall_ms = self._clock.wall_ms()
        metrics.publish_seconds.observe_one(publish_s, topic)
        for outcome in outcomes:
            rows = len(outcome.batch)
            for segment in outcome.batch.segments:
                if segment.start == 0:
                    for _, error in segment.chunk.rows.invalid:
                        metrics.dead_letters.labels(topic, error.reason).inc()
            if outcome.refused is not None:
                metrics.dead_letters.labels(topic, outcome.refused.reason).inc()
            elif rows:
                metrics.batches.labels(topic, outcome.batch.closed_by).inc()
                metrics.batch_rows.observe_one(rows, topic)
                metrics.service_seconds.observe_one(outcome.service_s, topic, outcome.engine)
                metrics.scores.labels(topic, outcome.engine).inc(rows)
                late = int((outcome.batch.deadlines() < outcome.scored_at).sum())
                if late:
                    metrics.late.labels(topic).inc(late)
                if outcome.reason is not None:
                    metrics.fallbacks.labels(topic, outcome.reason.partition(":")[2]).inc(rows)
                stamps = np.concatenate([_timestamps(segment) for segment in outcome.batch.segments])
                metrics.event_seconds.observe(np.maximum(wall_ms - stamps, 0.0) / 1000.0, topic)

    def _scores(self, segment: Segment, outcome: Outcome, row: int, now: float, wall_ms: float) -> list[Message]:
        chunk, start, stop = segment
        positions = chunk.rows.positions[start:stop].tolist()
        values = self._encoder.encode(
            segment, positions, outcome.scores[row : row + stop - start], outcome, now=now, wall_ms=wall_ms
        )
        records = chunk.records
        stamp = int(wall_ms)
        return [Message(records[position].key, value, stamp) for position, value in zip(positions, values, strict=True)]

    def _dead_letters(self, segment: Segment, refused: InvalidEvent | None) -> list[Message]:
        chunk = segment.chunk
        letters = [
            self._dead_letter(segment, chunk.records[position], error)
            for position, error in (chunk.rows.invalid if segment.start == 0 else ())
        ]
        if refused is not None:
            letters += [
                self._dead_letter(segment, chunk.records[position], refused)
                for position in chunk.rows.positions[segment.start : segment.stop].tolist()
            ]
        return letters

    def _dead_letter(self, segment: Segment, record: Record, error: InvalidEvent) -> Message:
        key, value, headers = DeadLetter(
            reason=error.reason,
            detail=error.detail,
            topic=segment.chunk.topic,
            partition=segment.chunk.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            key=record.key,
            value=record.value,
            headers=tuple(record.headers),
        ).to_record(self._dead_letter_max_bytes)
        return Message(key, value, None, headers)


def _timestamps(segment: Segment) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    records = segment.chunk.records
    positions = segment.chunk.rows.positions[segment.start : segment.stop].tolist()
    return np.array([records[position].timestamp for position in positions], dtype=np.float64)
