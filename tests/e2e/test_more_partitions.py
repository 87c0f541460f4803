"""Topics that get more partitions under a running worker: scores go to the partition of their events' number."""

import asyncio
from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client, Record
from tests.kafka.process import wait_until
from worker.config import KafkaConfig, WorkerConfig
from worker.publisher import Messages, Publisher

pytestmark = pytest.mark.kafka


def test_scores_of_new_partitions_go_to_new_partitions(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    pipeline = Pipeline(kafka, unique, package.path, partitions=2)
    worker = start_worker(configuration([pipeline], kafka={"metadata_max_age_ms": 500}))
    pipeline.produce([encode(event) for event in tips(100)])
    pipeline.wait_finished()
    for topic in (pipeline.scores_topic, pipeline.dead_topic, pipeline.name):
        kafka.grow_topic(topic, 4)
    wait_until(lambda: f"{pipeline.name}[3]" in worker.stderr, "the new partitions are assigned")
    for number in range(4):
        pipeline.produce([Record(encode(event), partition=number) for event in tips(10)])
        pipeline.produce([Record(b"no event", partition=number)])
    pipeline.wait_finished()
    messages = kafka.read_all(pipeline.scores_topic)
    assert len(messages) == 140
    assert all(pipeline.decode(message).partition == message.partition for message in messages)
    assert [message.partition for message in pipeline.dead_letters()] == [0, 1, 2, 3]


async def test_a_number_that_comes_first_is_looked_up_at_once(kafka: Client, unique: str) -> None:
    """Nothing is looked up by age here; a number above the count is looked up once."""
    topic = kafka.create_topic(unique, 2)
    publisher = Publisher(
        KafkaConfig(bootstrap_servers=kafka.bootstrap, metadata_max_age_ms=86_400_000), WorkerConfig()
    )

    async def send(*numbers: int) -> list[tuple[int, bytes | None]]:
        """(partition, value) of all that is in the topic afterwards."""
        for number in numbers:
            await (await publisher.send(topic, number, Messages([None], [b"%d" % number]), 0)).acknowledged()
        messages = await asyncio.to_thread(kafka.read_all, topic)
        return [(message.partition, message.value) for message in messages]

    await publisher.start()
    try:
        assert await send(0, 1, 2) == [(0, b"0"), (0, b"2"), (1, b"1")]
        await asyncio.to_thread(kafka.grow_topic, topic, 4)
        assert await send(2) == [(0, b"0"), (0, b"2"), (0, b"2"), (1, b"1")], "2 was asked for"
        assert (await send(3, 2))[3:] == [(1, b"1"), (2, b"2"), (3, b"3")]
    finally:
        await publisher.stop(5.0)
