"""What is published of a topic's batches, and what is counted of it."""

import logging
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from schemas.errors import InvalidEvent
from schemas.score import Score
from tests.worker.chunks import Maker, ManualClock
from tests.worker.topics import Outbox
from worker.alarms import AlarmCause, AlarmPolicy, Alarms
from worker.batch import Batch, Segment
from worker.batcher import Batcher
from worker.classes import ClassPolicy
from worker.config import TopicConfig
from worker.delivery import DeliveryDesk
from worker.metrics import Metrics, counts
from worker.outcome import NO_SCORES, Outcome
from worker.scores import ScoreEncoder
from worker.service_time import ServiceTime
from worker.troubles import Troubles


@dataclass
class Fixture:
    clock: ManualClock = field(default_factory=lambda: ManualClock(now=1.0, wall=2_000.0))
    outbox: Outbox = field(default_factory=Outbox)
    alarms: Alarms = field(default_factory=lambda: Alarms("t"))
    troubles: Troubles = field(default_factory=lambda: Troubles("t"))
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.desk = DeliveryDesk(
            TopicConfig(name="t", model="m"),
            publisher=self.outbox,
            encoder=ScoreEncoder("msgpack"),
            alarms=self.alarms,
            troubles=self.troubles,
            dead_letter_max_bytes=1000,
            metrics=self.metrics,
            clock=self.clock,
        )

    async def deliver(self, *outcomes: Outcome) -> int:
        """Publish, and count as acknowledged after 5 ms; the number of deliveries."""
        sent = await self.desk.publish(list(outcomes))
        self.desk.acknowledged(sent.outcomes, 0.005)
        return len(sent.deliveries)

    def scores(self) -> list[tuple[int, int, float | None]]:
        """(partition, offset, score) of what was published."""
        values = [msgspec.msgpack.decode(value or b"", type=Score) for _, _, value, _ in self.outbox.sent["t.scores"]]
        return [(score.partition, score.offset, score.score) for score in values]


def scored(batch: Batch, reason: str | None = None) -> Outcome:
    """Scores that are their records' offsets."""
    scores = np.concatenate([segment.chunk.offsets[segment.start : segment.stop] for segment in batch.segments])
    return Outcome(batch, scores.astype(np.float32), "ort", "m", "1", reason, 1.0, 0.001)


def refused(batch: Batch) -> Outcome:
    unscorable = InvalidEvent("unscorable", "made so")
    return Outcome(batch, NO_SCORES, "", "", "", None, 1.0, 0.001, unscorable)


def whole(*segments: Segment) -> Batch:
    return Batch(list(segments), "full")


async def test_rows_of_a_partition_that_was_given_up_are_neither_published_nor_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture, gone, ours = Fixture(), Maker(partition=0), Maker(partition=1, next_offset=10)
    left, kept = gone.chunk([5.0, 5.0, 5.0], bad=[0]), ours.chunk([5.0, 5.0])
    gone.fence.up = True
    with caplog.at_level(logging.WARNING, "scorelane.troubles"):
        mixed, last = whole(Segment(left, 0, 2), Segment(kept, 0, 2)), whole(Segment(left, 2, 3))
        assert await fixture.deliver(scored(mixed), refused(last)) == 1
        fixture.troubles.tell(1.0, ending=True)
    assert fixture.scores() == [(1, 10, 10.0), (1, 11, 11.0)]
    assert "t.dead" not in fixture.outbox.sent
    assert counts(fixture.metrics.scores, "engine") == {"ort": 2}
    assert counts(fixture.metrics.dead_letters, "reason") == {}
    assert fixture.alarms.evidence(AlarmCause.LATENCY_P99, 1.0) == 2
    assert fixture.alarms.evidence(AlarmCause.DEAD_LETTERS, 1.0) == 2
    assert caplog.messages == []


async def test_of_a_batch_that_is_no_longer_ours_nothing_is_sent() -> None:
    fixture, gone = Fixture(), Maker()
    chunk = gone.chunk([5.0, 5.0], bad=[0])
    gone.fence.up = True
    assert await fixture.deliver(scored(whole(Segment(chunk, 0, 2)))) == 0
    assert fixture.outbox.sent == {}
    assert counts(fixture.metrics.scores, "engine") == {}


async def test_a_batch_that_a_full_class_shed_was_not_closed_for_being_full() -> None:
    fixture, maker = Fixture(), Maker()
    waiting = Batcher(2, (ClassPolicy(name="L1", max_rows=2),), ServiceTime(), ServiceTime())
    (shed,) = waiting.offer(maker.chunk([5.0, 5.0, 6.0]), 0, 0.0)
    closed_by = waiting.closes(0.0, idle=False)
    assert closed_by is not None
    full = waiting.take(closed_by, 0.0)
    await fixture.deliver(scored(full), scored(shed, reason="shed:full"))
    assert fixture.scores() == [(0, 0, 0.0), (0, 1, 1.0), (0, 2, 2.0)]
    assert counts(fixture.metrics.batches, "closed_by") == {"full": 1, "shed": 1}
    assert counts(fixture.metrics.fallbacks, "cause") == {"shed:full": 1}


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ort:error", "error"),
        ("ort:breaker:half_open", "breaker:half_open"),
        ("newcomers:light:error", "error"),
        ("newcomers:trt:breaker:open", "breaker:open"),
        ("breaker:light:hung", "hung"),
        ("breaker:light:breaker:open", "breaker:open"),
        ("late:light", "late:light"),
        ("shed:quota", "shed:quota"),
        ("segment:error", "segment:error"),
    ],
)
async def test_a_cause_is_the_reason_without_the_engine_whatever_its_segment_is_called(reason: str, cause: str) -> None:
    fixture = Fixture()
    await fixture.deliver(scored(whole(Segment(Maker().chunk([5.0]), 0, 1)), reason))
    assert counts(fixture.metrics.fallbacks, "cause") == {cause: 1}


@pytest.mark.parametrize(
    ("reason", "failed"),
    [
        ("ort:error", True),
        ("ort:hung", True),
        ("ort:overdue", False),
        ("segment:error", False),
        ("segment:hung", False),
    ],
)
async def test_rows_of_a_segment_are_no_failures_whatever_it_is_called(reason: str, failed: bool) -> None:
    fixture = Fixture(alarms=Alarms("t", policy=AlarmPolicy(min_rows=1, raise_s=0.05)))
    await fixture.deliver(scored(whole(Segment(Maker().chunk([5.0]), 0, 1)), reason))
    for now in (1.0, 1.1):
        fixture.alarms.check(now, 0.0)
    assert (AlarmCause.ERRORS in fixture.alarms.raised) == failed
