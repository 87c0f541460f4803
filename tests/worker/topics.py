"""Topics with real packages and engines, their scores kept instead of published."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from engines.cache import EngineCache
from engines.package import Package
from schemas.event import TippingEvent
from schemas.score import Score
from tests.e2e.pipeline import encode
from tests.models import tiny_package
from tests.worker.chunks import Record
from worker.clock import Clock, SystemClock
from worker.config import Config, KafkaConfig, TopicConfig
from worker.metrics import Metrics
from worker.partition import Partition
from worker.publisher import Messages
from worker.topic import Topic


class Acknowledged:
    async def acknowledged(self) -> None:
        """At once."""


class Outbox:
    """A `Sender`: what is published stays here, by topic."""

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[int, bytes | None, bytes | None, dict[str, bytes | None]]]] = {}
        """Topic -> (partition, key, value, headers)."""
        self._came = asyncio.Condition()

    async def send(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> Acknowledged:
        headers = messages.headers or [[] for _ in messages.keys]
        async with self._came:
            for key, value, pairs in zip(messages.keys, messages.values, headers, strict=True):
                self.sent.setdefault(topic, []).append((partition, key, value, dict(pairs)))
            self._came.notify_all()
        return Acknowledged()

    async def until(self, topic: str, count: int) -> None:
        async with self._came, asyncio.timeout(20):
            await self._came.wait_for(lambda: len(self.sent.get(topic, ())) >= count)

    async def scores(self, count: int, topic: str = "t.scores") -> list[Score]:
        """The first `count` scores, by offset."""
        await self.until(topic, count)
        found = [msgspec.msgpack.decode(value, type=Score) for _, _, value, _ in self.sent[topic] if value is not None]
        return sorted(found, key=lambda score: score.offset)


def whole(*topics: TopicConfig, **sections: object) -> Config:
    return Config(kafka=KafkaConfig(bootstrap_servers="localhost:1"), topics=topics, **sections)  # type: ignore[arg-type]


def config(package: Package, **options: object) -> TopicConfig:
    # A budget that no busy machine exceeds, and always the primary first unless a test says otherwise.
    given = {"name": "t", "model": str(package.path), "budget_ms": 600_000.0, "primary_above_ms": 0.0, **options}
    return TopicConfig(**given)  # type: ignore[arg-type]


@asynccontextmanager
async def loaded(
    package: Package,
    *,
    clock: Clock | None = None,
    metrics: Metrics | None = None,
    sections: dict[str, object] | None = None,
    **options: object,
) -> AsyncIterator[Topic]:
    """A topic whose engines are loaded, without lanes."""
    async with AsyncExitStack() as stack:
        topic_config = config(package, **options)
        whole_config = whole(topic_config, **(sections or {}))
        cache = EngineCache()
        stack.callback(cache.close)
        topic = Topic(topic_config, whole_config, metrics or Metrics(), clock or SystemClock(), stack, cache)
        await topic.load()
        yield topic


@asynccontextmanager
async def running(topic: Topic, outbox: Outbox) -> AsyncIterator[Partition]:
    """The topic with one lane at work; a partition that is bound to it."""
    async with running_lanes(topic, outbox, 1):
        yield Partition("t", 0, topic.lanes[0])


@asynccontextmanager
async def running_lanes(
    topic: Topic, outbox: Outbox, lanes: int, settled: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """The topic with its lanes opened and at work."""
    await topic.open_lanes(lanes, outbox, settled)
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(lane.run()) for lane in topic.lanes]
        yield
        for task in working:
            task.cancel()


def records(events: list[TippingEvent], first: int = 0, **given: object) -> list[Record]:
    """One record an event, consecutive offsets."""
    return [
        Record(first + index, value=encode(event), **({"timestamp": event.time_ms} | given))  # type: ignore[arg-type]
        for index, event in enumerate(events)
    ]


def tipping(directory: Path, name: str = "tiny", seed: int = 0) -> Package:
    return tiny_package(directory, "tipping", "lr", seed, name=name)
