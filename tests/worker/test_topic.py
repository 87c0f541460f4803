"""Taking in: one poll's records become a chunk whose columns belong together, with deadlines and classes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from engines.package import Package
from tests.e2e.pipeline import encode, tips
from tests.worker.chunks import ManualClock, Record
from tests.worker.topics import Outbox, loaded, records, running, tipping
from worker.batch import Chunk
from worker.config_quality import ClassConfig, SegmentConfig
from worker.metrics import Metrics
from worker.partition import Partition
from worker.topic import Topic

WALL_MS = 1_000_000.0
NOW = 500.0
CLASSES = {"classes": (ClassConfig(name="L1"), ClassConfig(name="L2"), ClassConfig(name="L3"))}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tipping(tmp_path_factory.mktemp("models"))


class Caught:
    """A lane that keeps what it is offered."""

    has_room = True

    def __init__(self) -> None:
        self.offered: list[tuple[Chunk, int | NDArray[np.intp]]] = []

    def offer(self, chunk: Chunk, ranks: int | NDArray[np.intp]) -> None:
        self.offered.append((chunk, ranks))


class Intake:
    def __init__(self, topic: Topic, metrics: Metrics) -> None:
        self.topic, self.metrics, self.lane = topic, metrics, Caught()
        self.partition = Partition("t", 3, self.lane)  # type: ignore[arg-type]

    def take(self, taken: list[Record]) -> tuple[Chunk, list[int] | int]:
        self.topic.take_in(self.partition, taken)
        chunk, ranks = self.lane.offered[-1]
        return chunk, ranks if isinstance(ranks, int) else ranks.tolist()

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"topic": "t", **labels})

    def unreadable(self, header: str) -> float | None:
        return self.metric("scorelane_unreadable_headers_total", header=header)


@asynccontextmanager
async def intake(package: Package, **options: object) -> AsyncIterator[Intake]:
    metrics = Metrics()
    clock = ManualClock(NOW, WALL_MS)
    async with loaded(package, clock=clock, metrics=metrics, **{"budget_ms": 100.0, **options}) as topic:  # type: ignore[arg-type]
        yield Intake(topic, metrics)


def given(offset: int, value: bytes | None, timestamp: float = WALL_MS, **headers: bytes | None) -> Record:
    return Record(offset, int(timestamp), b"key-%d" % offset, value, tuple(headers.items()))


GOOD = [encode(event) for event in tips(4)]


async def test_keys_and_headers_count_as_memory_too(package: Package) -> None:
    """A lane is bounded in bytes: small values under huge keys and headers must fill it as well."""
    async with intake(package) as at:
        bare, _ = at.take([Record(0, value=GOOD[0]), Record(1, value=b"bad")])
        taken = [
            Record(2, key=b"k" * 5_000, value=GOOD[0]),
            Record(3, key=b"k" * 70, value=b"bad", headers=(("h" * 100, b"x" * 2_000), ("n", None))),
        ]
        chunk, _ = at.take(taken)
        assert chunk.nbytes == bare.nbytes + 5_000 + 70 + 2_101


async def test_columns_of_scorable_records_belong_together_and_dead_ones_keep_their_place(package: Package) -> None:
    async with intake(package) as at:
        taken = [
            given(10, None),
            given(12, GOOD[0], WALL_MS - 20),
            given(13, b"\xc1"),
            given(17, GOOD[1], WALL_MS - 60),
            given(18, b""),
        ]
        chunk, _ = at.take(taken)
        assert (chunk.topic, chunk.partition, chunk.arrived_at) == ("t", 3, NOW)
        assert chunk.records is taken
        assert chunk.rows.positions.tolist() == [1, 3]
        assert [(position, error.reason) for position, error in chunk.rows.invalid] == [
            (0, "empty"),
            (2, "malformed"),
            (4, "empty"),
        ]
        assert chunk.keys == [b"key-12", b"key-17"]
        assert chunk.offsets == [12, 17]
        assert chunk.timestamps_ms.tolist() == [WALL_MS - 20, WALL_MS - 60]
        assert chunk.deadlines.tolist() == pytest.approx([NOW + 0.080, NOW + 0.040])
        assert chunk.rows.keys == ["tip-0-0", "tip-0-1"]
        assert chunk.nbytes == len(GOOD[0] + GOOD[1]) + 1 + chunk.rows.nbytes + 5 * (700 + len(b"key-10"))
        assert not chunk.fenced()
        at.partition.fence()
        assert chunk.fenced()
        assert (at.partition.ledger.unsettled, at.partition.ledger.next_offset) == (5, 10)
        chunk.entry.settle(np.array([0, 1, 2]))
        assert at.partition.ledger.next_offset == 14
        assert at.metric("scorelane_records_total") == 5


async def test_records_of_which_none_can_be_scored_are_a_chunk_without_rows(package: Package) -> None:
    async with intake(package, sections=CLASSES) as at:
        chunk, _ = at.take([given(0, None, **{"class": b"L2", "deadline_ms": b"1"}), given(1, b"\xc1")])
        assert len(chunk.rows) == len(chunk.deadlines) == len(chunk.offsets) == 0
        assert len(chunk.rows.invalid) == 2
        assert at.partition.ledger.unsettled == 2


async def test_headers_bring_deadlines_to_their_own_rows(package: Package) -> None:
    own = msgspec.structs.replace(tips(1)[0], deadline_ms=WALL_MS + 70)
    async with intake(package) as at:
        taken = [
            given(0, b"\xc1", deadline_ms=b"1"),
            given(1, GOOD[0], deadline_ms=str(WALL_MS + 30).encode()),
            given(2, GOOD[1]),
            given(3, GOOD[2], deadline_ms=str(WALL_MS + 900).encode()),
            given(4, encode(own), deadline_ms=str(WALL_MS + 80).encode()),
            given(5, encode(own), deadline_ms=str(WALL_MS + 60).encode()),
            given(6, GOOD[3], deadline_ms=b"soon", other=None),
        ]
        chunk, _ = at.take(taken)
        left_ms = (chunk.deadlines - NOW) * 1000
        assert left_ms.tolist() == pytest.approx([30, 100, 100, 70, 60, 100]), "the earliest, at most the budget"


@pytest.mark.parametrize(("meaning", "left_ms"), [("relative", [30.0, 80.0]), ("ignore", [80.0, 80.0])])
async def test_what_the_header_means_is_the_topics_to_say(package: Package, meaning: str, left_ms: list[float]) -> None:
    async with intake(package, event_deadline=meaning) as at:
        taken = [given(0, GOOD[0], WALL_MS - 20, deadline_ms=b"50"), given(1, GOOD[1], WALL_MS - 20)]
        chunk, _ = at.take(taken)
        assert ((chunk.deadlines - NOW) * 1000).tolist() == pytest.approx(left_ms)


async def test_headers_bring_classes_to_their_own_rows(package: Package) -> None:
    async with intake(package, sections=CLASSES, service_class="L2") as at:
        taken = [
            given(0, b"\xc1", **{"class": b"L1"}),
            given(1, GOOD[0], **{"class": b"L3"}),
            given(2, GOOD[1]),
            given(3, GOOD[2], **{"class": b"L1"}),
            given(4, GOOD[3], **{"class": b"L9"}),
            given(5, GOOD[3], **{"class": None}),
        ]
        _, ranks = at.take(taken)
        assert ranks == [2, 1, 0, 1, 1]
        _, rank = at.take([given(6, GOOD[0]), given(7, GOOD[1])])
        assert rank == 1, "without headers one class for all"


async def test_headers_that_say_nothing_count_as_absent_and_are_counted(package: Package) -> None:
    async with intake(package, sections=CLASSES, service_class="L2") as at:
        taken = [
            given(0, GOOD[0], deadline_ms=b"abc", **{"class": b"L1"}),
            given(1, GOOD[1], deadline_ms=b"nan", **{"class": b"gold"}),
            given(2, GOOD[2], deadline_ms=None, **{"class": None}),
            given(3, GOOD[3], deadline_ms=str(WALL_MS + 40).encode(), other=b"abc"),
        ]
        chunk, ranks = at.take(taken)
        assert ((chunk.deadlines - NOW) * 1000).tolist() == pytest.approx([100, 100, 100, 40])
        assert ranks == [0, 1, 1, 1]
        assert (at.unreadable("deadline_ms"), at.unreadable("class")) == (2, 1)


async def test_headers_that_nobody_asks_for_are_not_counted(package: Package) -> None:
    async with intake(package, event_deadline="ignore") as at:
        at.take([given(0, GOOD[0], deadline_ms=b"abc", **{"class": b"gold"})])
        assert (at.unreadable("deadline_ms"), at.unreadable("class")) == (None, None)


async def test_the_first_class_is_the_default_and_the_only_one_needs_no_header(package: Package) -> None:
    async with intake(package, sections=CLASSES) as at:
        assert at.take([given(0, GOOD[0])])[1] == 0
    async with intake(package) as at:
        assert at.take([given(0, GOOD[0], **{"class": b"L1"})])[1] == 0


async def test_a_producers_clock_ahead_of_ours_is_reported_and_stretches_no_budget(package: Package) -> None:
    async with intake(package) as at:
        at.take([given(0, GOOD[0], WALL_MS - 5)])
        assert at.metric("scorelane_clock_skew_seconds") is None
        chunk, _ = at.take([given(1, GOOD[0], WALL_MS + 250), given(2, GOOD[1], WALL_MS + 1500), given(3, GOOD[2])])
        assert at.metric("scorelane_clock_skew_seconds") == 1.5
        assert ((chunk.deadlines - NOW) * 1000).tolist() == pytest.approx([100, 100, 100])


def _tail(package: Package) -> SegmentConfig:
    return SegmentConfig(name="tail", model=str(package.path), tensor="ids", column=2, fewer_than=3.0)


async def test_a_long_tail_is_who_had_few_events(package: Package, tmp_path: Path) -> None:
    own = tipping(tmp_path, "own", seed=7)
    outbox = Outbox()
    frequent, rare = tips(2)
    async with loaded(package, segments=(_tail(own),)) as topic, running(topic, outbox) as partition:
        topic.take_in(partition, records([frequent] * 2))
        early = await outbox.scores(2)
        topic.take_in(partition, records([frequent, rare, frequent], 2))
        later = (await outbox.scores(5))[2:]
    assert {(score.engine, score.reason, score.model) for score in early} == {("tail:light", "segment:tail", "own")}
    assert [(score.engine, score.reason) for score in later] == [
        ("ort", None),
        ("tail:light", "segment:tail"),
        ("ort", None),
    ]


async def test_a_segment_has_the_scores_of_its_own_model(package: Package, tmp_path: Path) -> None:
    own = tipping(tmp_path, "own", seed=7)
    events = tips(8, 1)
    outbox = Outbox()
    async with loaded(package) as plain, running(plain, outbox) as partition:
        plain.take_in(partition, records(events))
        by_topic = await outbox.scores(8)
    outbox = Outbox()
    async with loaded(own, engine="light", fallback=()) as alone, running(alone, outbox) as partition:
        alone.take_in(partition, records(events))
        by_own = await outbox.scores(8)
        viewers = alone._decoder.decode([encode(event) for event in events]).tensors["ids"][:, 2].tolist()
    whales = SegmentConfig(name="whales", model=str(own.path), tensor="ids", column=2, values=tuple(viewers[:3]))
    outbox = Outbox()
    async with loaded(package, segments=(whales,)) as topic, running(topic, outbox) as partition:
        topic.take_in(partition, records(events))
        split = await outbox.scores(8)
    assert [score.reason for score in split] == ["segment:whales"] * 3 + [None] * 5
    expected = [score.score for score in by_own[:3] + by_topic[3:]]
    np.testing.assert_allclose([score.score for score in split], expected, rtol=1e-5)


@pytest.mark.parametrize("late", ["score", "light", "skip", "dead_letter"])
async def test_late_events_go_by_the_topics_policy(package: Package, late: str) -> None:
    outbox = Outbox()
    on_time, overdue = tips(2)
    async with loaded(package, late=late) as topic, running(topic, outbox) as partition:
        taken = records([on_time, overdue])
        taken[1].headers = (("deadline_ms", b"1000"),)
        topic.take_in(partition, taken)
        scores = await outbox.scores(1 if late == "dead_letter" else 2)
        if late == "dead_letter":
            await outbox.until("t.dead", 1)
    assert (scores[0].engine, scores[0].late, scores[0].reason) == ("ort", False, None)
    assert scores[0].remaining_ms > 0
    if late == "dead_letter":
        ((partition_number, _, value, headers),) = outbox.sent["t.dead"]
        assert (partition_number, value, headers["scorelane.reason"]) == (0, taken[1].value, b"late")
        return
    last = scores[1]
    assert last.late and last.remaining_ms < 0
    expected = {"score": ("ort", None), "light": ("light", "late:light"), "skip": ("none", "late:skip")}[late]
    assert (last.engine, last.reason) == expected
    assert (last.score is None) == (late == "skip")


async def test_little_budget_goes_to_the_next_engine(package: Package) -> None:
    outbox = Outbox()
    async with loaded(package, primary_above_ms=100_000.0) as topic, running(topic, outbox) as partition:
        taken = records(tips(2))
        taken[1].headers = (("deadline_ms", str(taken[1].timestamp + 90_000).encode()),)
        topic.take_in(partition, taken)
        scores = await outbox.scores(2)
    assert [(score.engine, score.reason) for score in scores] == [("ort", None), ("light", "ort:budget")]


async def test_light_answers_until_the_primary_is_warm(package: Package) -> None:
    outbox = Outbox()
    async with loaded(package, cold_start="light") as topic, running(topic, outbox) as partition:
        topic.take_in(partition, records(tips(3)))
        cold = await outbox.scores(3)
        await topic.chain.warm_up()
        topic.take_in(partition, records(tips(3), 3))
        warm = (await outbox.scores(6))[3:]
    assert {(score.engine, score.reason) for score in cold} == {("light", "ort:cold")}
    assert {(score.engine, score.reason) for score in warm} == {("ort", None)}


async def test_what_waits_longer_than_its_class_allows_is_shed(package: Package) -> None:
    """Nothing is scored while the lane does not run: the timeout passes before it starts."""
    outbox = Outbox()
    clock = ManualClock(NOW, WALL_MS)
    sections = {"classes": (ClassConfig(name="L1"), ClassConfig(name="L2", timeout_ms=200, shed="skip"))}
    async with loaded(package, clock=clock, sections=sections) as topic:
        await topic.open_lanes(1, outbox, lambda: None)
        partition = Partition("t", 0, topic.lanes[0])
        taken = records(tips(2))
        taken[1].headers = (("class", b"L2"),)
        topic.take_in(partition, taken)
        clock.now += 0.3
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(topic.lanes[0].run())
            scores = await outbox.scores(2)
            working.cancel()
    assert [(score.engine, score.reason) for score in scores] == [("ort", None), ("none", "shed:timeout")]
    assert scores[1].score is None
