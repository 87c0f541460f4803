"""Records that are in order for Kafka and unusual: huge keys, transactions and what they leave in the log."""

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client, Record

pytestmark = pytest.mark.kafka


def test_keys_too_large_for_the_output_and_transaction_markers_are_passed(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    # The input topic takes larger records than the output topics, as where producers compress.
    pipeline = Pipeline(kafka, unique, package.path, partitions=1, max_message_bytes=8 << 20)
    huge = b"k" * (3 << 20)
    events = [encode(event) for event in tips(3)]
    where = pipeline.produce([Record(events[0], key=b"a"), Record(events[1], key=huge), Record(None, key=huge)])

    async def in_transactions() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=unique) as producer:
            async with producer.transaction():
                await producer.send_and_wait(unique, events[2], key=b"c", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(unique, b"aborted", partition=0)
            await producer.abort_transaction()

    kafka.run(in_transactions())
    worker = start_worker(configuration([pipeline]))
    pipeline.wait_finished()
    assert kafka.end_offsets(unique) == {0: 7}, "five records and two markers, the last of which has offset 6"
    assert worker.metric("scorelane_lag_records") == 0

    assert positions(pipeline.scores()) == dict.fromkeys([*where[:2], (0, 3)], 1)
    messages = kafka.read_all(pipeline.scores_topic)
    # The one that was refused comes again, behind what was on its way.
    assert {message.key: dict(message.headers) for message in messages} == {
        b"a": {},
        None: {"scorelane.dropped_key": b"3145728"},
        b"c": {},
    }
    tombstone, aborted = pipeline.dead_letters()
    assert dict(tombstone.headers)["scorelane.dropped_key"] == b"3145728"
    assert aborted.value == b"aborted", "without read_committed these are records as others"

    worker.sigterm()
    dead = len(pipeline.dead_letters())
    pipeline.group = f"{unique}-committed"
    start_worker(configuration([pipeline], kafka={"isolation_level": "read_committed"}))
    pipeline.wait_finished()
    assert len(pipeline.dead_letters()) == dead + 1, "the tombstone again, and not what was aborted"
