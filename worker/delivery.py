"""From outcomes to published messages: scores and dead letters of one topic, and their count."""

from collections import Counter, defaultdict
from typing import Final, NamedTuple

import numpy as np

from schemas.dead_letter import DeadLetter, Header
from schemas.errors import InvalidEvent
from worker.alarms import Alarms
from worker.batch import Record, Segment
from worker.clock import Clock
from worker.config import TopicConfig
from worker.metrics import Metrics
from worker.outcome import SKIPPED, Outcome
from worker.publisher import Acknowledgement, Messages, Sender
from worker.route import OWN_REASONS
from worker.scores import ScoreEncoder
from worker.troubles import Dead, Troubles

FAILURES: Final = ("error", "hung", "not_finite", "device_lost")
"""Causes that are the primary engine's fault."""


class Sent(NamedTuple):
    """What was handed to the producer."""

    outcomes: list[Outcome]
    """Without what is no longer ours."""
    deliveries: list[Acknowledgement]
    """To be awaited before a segment of the outcomes is settled. Empty: nothing was sent."""


class DeliveryDesk:
    """Publishes what became of one topic's batches.

    A score goes to the partition that its event came from, under the event's key, so the scores of a partition keep
    its order. Segments of a partition that is no longer ours are left out: its new owner scores them.
    """

    def __init__(
        self,
        config: TopicConfig,
        *,
        publisher: Sender,
        encoder: ScoreEncoder,
        alarms: Alarms,
        troubles: Troubles,
        dead_letter_max_bytes: int,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._config = config
        self._publisher = publisher
        self._encoder = encoder
        self._alarms = alarms
        self._troubles = troubles
        self._dead_letter_max_bytes = dead_letter_max_bytes
        self._metrics = metrics
        self._clock = clock

    async def publish(self, outcomes: list[Outcome]) -> Sent:
        """Queue all that is ours still. Raises `PublishFailed`."""
        outcomes = [outcome.owned() for outcome in outcomes]
        scores: defaultdict[int, Messages] = defaultdict(Messages)
        dead: defaultdict[int, Messages] = defaultdict(Messages)
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        for outcome in outcomes:
            row = 0
            for segment in outcome.batch.segments:
                chunk, start, stop = segment
                self._add_dead_letters(dead[chunk.partition], segment, outcome.refused)
                if outcome.refused is None and stop > start:
                    values = self._encoder.encode(
                        segment, outcome.scores[row : row + stop - start], outcome, now=now, wall_ms=wall_ms
                    )
                    scores[chunk.partition].add(chunk.keys[start:stop], values)
                row += stop - start
        deliveries: list[Acknowledgement] = []
        for topic, by_partition in ((self._config.scores, scores), (self._config.dead_letters, dead)):
            for partition, messages in by_partition.items():
                if len(messages):
                    deliveries.append(await self._publisher.send(topic, partition, messages, int(wall_ms)))
        return Sent(outcomes, deliveries)

    def acknowledged(self, outcomes: list[Outcome], publish_s: float) -> None:
        """Count outcomes that `publish` sent and the brokers have."""
        metrics, topic = self._metrics, self._config.name
        wall_ms = self._clock.wall_ms()
        metrics.publish_seconds.observe_one(publish_s, topic)
        self._count_dead_letters(outcomes)
        for outcome in outcomes:
            rows = len(outcome.batch)
            if outcome.refused is not None:
                continue
            if outcome.engine == SKIPPED:
                metrics.skipped.labels(topic, _cause(outcome)).inc(rows)
            elif rows:
                metrics.batches.labels(topic, outcome.batch.closed_by).inc()
                metrics.batch_rows.observe_one(rows, topic)
                metrics.service_seconds.observe_one(outcome.service_s, topic, outcome.engine)
                metrics.scores.labels(topic, outcome.engine).inc(rows)
                late = int((outcome.batch.deadlines() < outcome.scored_at).sum())
                if late:
                    metrics.late.labels(topic).inc(late)
                if outcome.reason is not None:
                    metrics.fallbacks.labels(topic, _cause(outcome)).inc(rows)
                self._alarm(outcome, late)
                stamps = np.concatenate([s.chunk.timestamps_ms[s.start : s.stop] for s in outcome.batch.segments])
                metrics.event_seconds.observe(np.maximum(wall_ms - stamps, 0.0) / 1000.0, topic)

    def _count_dead_letters(self, outcomes: list[Outcome]) -> None:
        """By reason, and beside all records; the first of them is shown."""
        records = 0
        dead: Counter[str] = Counter()
        first: Dead | None = None
        for outcome in outcomes:
            refused = outcome.refused
            for chunk, start, stop in outcome.batch.segments:
                invalid = chunk.rows.invalid if start == 0 else []
                records += len(invalid) + stop - start
                if invalid:
                    dead.update(error.reason for _, error in invalid)
                    position, error = invalid[0]
                    first = first or Dead(chunk.partition, chunk.records[position].offset, error.reason, error.detail)
                if refused is not None and stop > start:
                    dead[refused.reason] += stop - start
                    first = first or Dead(chunk.partition, chunk.offsets[start], refused.reason, refused.detail)
        for reason, count in dead.items():
            self._metrics.dead_letters.labels(self._config.name, reason).inc(count)
        now = self._clock.monotonic()
        self._alarms.settled(records, dead.total(), now)
        self._troubles.settled(records, dead, first, now)

    def _add_dead_letters(self, messages: Messages, segment: Segment, refused: InvalidEvent | None) -> None:
        chunk, start, stop = segment
        if start == 0:
            for position, error in chunk.rows.invalid:
                messages.add_one(*self._dead_letter(segment, chunk.records[position], error))
        if refused is not None:
            for position in chunk.rows.positions[start:stop].tolist():
                messages.add_one(*self._dead_letter(segment, chunk.records[position], refused))

    def _dead_letter(
        self, segment: Segment, record: Record, error: InvalidEvent
    ) -> tuple[bytes | None, bytes | None, list[Header]]:
        return DeadLetter(
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

    def _alarm(self, outcome: Outcome, late: int) -> None:
        waits = [np.full(s.stop - s.start, outcome.scored_at - s.chunk.arrived_at) for s in outcome.batch.segments]
        self._alarms.answered(np.concatenate(waits), late, outcome.scored_at)
        if _cause(outcome) in FAILURES:
            self._alarms.failed(len(outcome.batch), outcome.scored_at)


def _cause(outcome: Outcome) -> str:
    """The reason without the engine's name, a metric label: a closed set, but for the configured segments."""
    reason = outcome.reason or ""
    if reason.partition(":")[0] in OWN_REASONS:
        return reason
    _, breaker, state = reason.partition(":breaker:")
    return f"breaker:{state}" if breaker else reason.rpartition(":")[2]
