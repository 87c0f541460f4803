"""What goes wrong often is in the log: seldom, counted, and with an example."""

import asyncio
import logging

import pytest

from engines.package import Package
from tests.e2e.pipeline import tips
from tests.worker.chunks import ManualClock, Record
from tests.worker.topics import Outbox, loaded, records, running_lanes, tipping
from worker.partition import Partition
from worker.troubles import Dead, Troubles


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.message for record in caplog.records if record.name == "scorelane.troubles"]
    assert {record.levelno for record in caplog.records if record.name == "scorelane.troubles"} <= {logging.WARNING}
    caplog.clear()
    return found


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tipping(tmp_path_factory.mktemp("models"))


def test_overdue_batches_of_a_busy_machine_are_folded(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles("tips")
    for step in range(20):  # one a second, from 100 to 119
        troubles.failed("ort", "overdue", 1 + step % 2, f"still in work after {step} ms", 100.0 + step)
    assert messages(caplog) == [
        "topic tips: engine ort: overdue: 1 batch of 1 row: still in work after 0 ms",
        "topic tips: engine ort: overdue: 5 batches of 8 rows in the last 4 s; the first: still in work after 1 ms",
        "topic tips: engine ort: overdue: 5 batches of 7 rows in the last 4 s; the first: still in work after 6 ms",
        "topic tips: engine ort: overdue: 5 batches of 8 rows in the last 4 s; the first: still in work after 11 ms",
    ]
    troubles.tell(119.9)
    assert messages(caplog) == []
    troubles.tell(120.0)
    assert messages(caplog) == [
        "topic tips: engine ort: overdue: 4 batches of 6 rows in the last 4 s; the first: still in work after 16 ms"
    ]


def test_another_cause_and_another_engine_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles("tips")
    for engine, cause in (("ort", "overdue"), ("ort", "error"), ("light", "error"), ("ort", "overdue")):
        troubles.failed(engine, cause, 2, "so", 100.0)
    assert messages(caplog) == [
        "topic tips: engine ort: overdue: 1 batch of 2 rows: so",
        "topic tips: engine ort: error: 1 batch of 2 rows: so",
        "topic tips: engine light: error: 1 batch of 2 rows: so",
    ]
    troubles.tell(101.0, ending=True)
    assert messages(caplog) == ["topic tips: engine ort: overdue: 1 batch of 2 rows in the last 1 s: so"]


def test_a_detail_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles("tips")
    troubles.settled(1, {"wrong_type": 1}, Dead(0, 5, "wrong_type", "a\nb " + "x" * 1000), 1.0)
    troubles.tell(1.0)
    (message,) = messages(caplog)
    assert message.endswith(" wrong_type: a b " + "x" * 296)


async def test_a_topic_of_dead_letters_alone_is_told_with_counts_reasons_and_an_example(
    package: Package, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, clock, settled = Outbox(), ManualClock(1000.0, 5e6), asyncio.Queue[None]()
    async with loaded(package, clock=clock) as topic, running_lanes(topic, outbox, 1, lambda: settled.put_nowait(None)):
        partition = Partition("t", 3, topic.lanes[0])

        async def take(taken: list[Record], now: float) -> None:
            clock.now = now
            topic.take_in(partition, taken)
            async with asyncio.timeout(10):
                while partition.ledger.unsettled:
                    await settled.get()
            topic.troubles.tell(now)

        await take(records(tips(5)), 1000.0)
        assert messages(caplog) == [], "nothing is wrong"
        await take([Record(17 + i, value=b"\xc1") for i in range(3)], 1001.0)
        assert messages(caplog) == [
            "topic t: 3 of 3 records became dead letters: 3 malformed; the first: partition 3, offset 17:"
            " malformed: event: MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)"
        ]
        await take([Record(20, value=None), *records(tips(4), 21)], 1002.0)
        await take([Record(25, value=b"\xc1"), Record(26, value=b"\xc1"), *records(tips(2), 27)], 1009.0)
        assert messages(caplog) == []
        clock.now = 1011.0
        topic.troubles.tell(clock.now)
        assert messages(caplog) == [
            "topic t: 3 of 9 records became dead letters in the last 9 s: 2 malformed, 1 empty; the first: partition 3,"
            " offset 20: empty: event: the record has no value (a tombstone)"
        ]


async def test_dead_letters_by_a_policy_are_told_as_well(package: Package, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox()
    async with loaded(package, late="dead_letter") as topic, running_lanes(topic, outbox, 1):
        taken = records(tips(2), 40)
        taken[1].headers = (("deadline_ms", b"1000"),)
        partition = Partition("t", 0, topic.lanes[0])
        topic.take_in(partition, taken)
        await outbox.until("t.dead", 1)
        async with asyncio.timeout(10):
            await topic.lanes[0].drain()
        topic.troubles.tell(topic._clock.monotonic(), ending=True)
    (message,) = messages(caplog)
    assert " 1 late; the first: partition 0, offset 41: late: not scored: late:dead_letter" in message
