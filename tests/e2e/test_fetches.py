"""What a worker asks of a real broker while records flow: the terms of its fetches, and how many there are."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher

from engines.package import Package
from tests.e2e.pipeline import encode, tips
from tests.kafka.client import Client
from tests.models import tiny_package
from tests.worker.topics import Outbox, loaded, running_lanes
from worker.clock import SystemClock
from worker.config import KafkaConfig, WorkerConfig
from worker.consumer import Consumer
from worker.fetching import client_of
from worker.metrics import Metrics
from worker.pacing import GATHERED_BYTES, Terms

pytestmark = pytest.mark.kafka

APPENDS = 200
"""Of two records each, one after the other, as fast as the broker acknowledges them."""
LINGER_MS = 400
"""So long that all appends come in a few of them; below `IDLE_POLL_MS`, after which the terms are others anyway."""


class Watch:
    """In the order in which they happen: terms of each fetch, number of records of each poll that brought any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Terms | int] = []
        self.empty = asyncio.Event()
        """Set when a fetch is sent after an empty answer."""
        request, getmany = fetcher.FetchRequest, AIOKafkaConsumer.getmany

        def fetch(wait_ms: int, min_bytes: int, *rest: Any, **more: Any) -> Any:
            if self.seen and isinstance(self.seen[-1], Terms):
                self.empty.set()
            self.seen.append(Terms(min_bytes, wait_ms))
            return request(wait_ms, min_bytes, *rest, **more)

        async def poll(client: Any, *partitions: TopicPartition, **options: int) -> Mapping[Any, Sequence[Any]]:
            polled: Mapping[Any, Sequence[Any]] = await getmany(client, *partitions, **options)
            if polled:
                self.seen.append(sum(map(len, polled.values())))
            return polled

        monkeypatch.setattr(fetcher, "FetchRequest", fetch)
        monkeypatch.setattr(AIOKafkaConsumer, "getmany", poll)

    @property
    def polls(self) -> list[int]:
        return [seen for seen in self.seen if isinstance(seen, int)]


async def append(kafka: Client, topic: str, values: Sequence[bytes]) -> None:
    batch = kafka.producer.create_batch()
    for value in values:
        batch.append(key=None, value=value, timestamp=None)
    batch.close()
    await (await kafka.producer.send_batch(batch, topic, partition=0))


async def flow(kafka: Client, topic: str, linger_ms: int, package: Package, watch: Watch) -> None:
    """A lone record, and when it is scored a flow of them; ends with the fetch after one that brought nothing."""
    config = KafkaConfig(bootstrap_servers=kafka.bootstrap, group_id=topic, fetch_linger_ms=linger_ms)
    values = [encode(event) for event in tips(1 + 2 * APPENDS)]

    async def appends() -> None:
        for number in range(1, len(values), 2):
            await append(kafka, topic, values[number : number + 2])

    outbox, metrics = Outbox(), Metrics()
    async with loaded(package, metrics=metrics, name=topic) as to:
        consumer = Consumer(client_of(config), config, WorkerConfig(), {topic: to}, metrics, SystemClock())
        async with running_lanes(to, outbox, 1, consumer.settled):
            await consumer.start()
            polling = asyncio.create_task(consumer.run())
            try:
                await asyncio.to_thread(kafka.run, append(kafka, topic, values[:1]))
                await outbox.until(f"{topic}.scores", 1)
                await asyncio.to_thread(kafka.run, appends())
                await outbox.until(f"{topic}.scores", len(values))
                watch.empty.clear()
                async with asyncio.timeout(20):
                    await watch.empty.wait()
            finally:
                polling.cancel()
                await consumer.leave()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tiny_package(tmp_path_factory.mktemp("models"))


async def test_only_the_fetch_after_records_that_came_together_gathers(
    kafka: Client, unique: str, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create_topic(unique)
    watch = Watch(monkeypatch)
    await flow(kafka, unique, LINGER_MS, package, watch)
    polled = 0
    for seen in watch.seen:
        if isinstance(seen, Terms):
            assert (seen == Terms(GATHERED_BYTES, LINGER_MS)) == (polled > 1), watch.seen
            polled = 0
        else:
            polled = seen
    assert watch.polls[0] == 1
    assert sum(watch.polls) == 1 + 2 * APPENDS


async def test_while_records_flow_there_are_far_fewer_fetches(kafka: Client, unique: str, package: Package) -> None:
    fetches = {}
    for linger_ms in (0, LINGER_MS):
        topic = kafka.create_topic(f"{unique}-{linger_ms}")
        with pytest.MonkeyPatch.context() as patch:
            watch = Watch(patch)
            await flow(kafka, topic, linger_ms, package, watch)
        fetches[linger_ms] = len(watch.seen) - len(watch.polls)
    assert fetches[LINGER_MS] * 3 < fetches[0], fetches
