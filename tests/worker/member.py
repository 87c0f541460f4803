"""A member of the group on a scripted client: it does on demand what a broker does not."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Literal

from aiokafka import TopicPartition

from engines.package import Package
from tests.worker.chunks import Record
from tests.worker.topics import Outbox, loaded, running_lanes
from worker.clock import SystemClock
from worker.config import KafkaConfig, WorkerConfig
from worker.consumer import Consumer
from worker.metrics import Metrics
from worker.pacing import IDLE_FETCH_WAIT_MS, Terms
from worker.topic import Topic

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
Reset = Literal["earliest", "latest"]
Poll = Mapping[TopicPartition, list[Record]]


class Fetcher:
    def __init__(self) -> None:
        self.error_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.patient = asyncio.Event()
        self.agreed: list[Terms] = []
        self._records: dict[TopicPartition, object] = {}
        self._fetch_min_bytes = 1

    @property
    def _fetch_max_wait_ms(self) -> int:
        return self.agreed[-1].wait_ms

    @_fetch_max_wait_ms.setter
    def _fetch_max_wait_ms(self, wait_ms: int) -> None:
        self.agreed.append(Terms(self._fetch_min_bytes, wait_ms))
        if wait_ms == IDLE_FETCH_WAIT_MS:
            self.patient.set()


class Client:
    """Polls answer with what is put into `polls`; errors are raised."""

    def __init__(self) -> None:
        self.polls: asyncio.Queue[Poll | Exception] = asyncio.Queue()
        self.delivered = asyncio.Event()
        self.asked: list[tuple[tuple[TopicPartition, ...], int]] = []
        self.commits: list[dict[TopicPartition, int]] = []
        self.log: list[str] = []
        self.stops: BaseException | None = None
        self.start_error: Exception | None = None
        self.commit_error: Exception | None = None
        self._fetcher = Fetcher()
        self._client = SimpleNamespace(_conns={})
        self.positions: dict[TopicPartition, int] = {}
        """Where the next poll goes on; absent: not known."""
        self._coordinator = SimpleNamespace(generation=1)

    @property
    def _subscription(self) -> SimpleNamespace:
        states = {tp: SimpleNamespace(position=at, has_valid_position=True) for tp, at in self.positions.items()}
        assignment = SimpleNamespace(tps=states.keys(), state_value=states.__getitem__)
        return SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))

    def expel(self) -> None:
        """The group no longer knows this member."""
        self._coordinator.generation = -1

    def subscribe(self, topics: list[str], listener: object) -> None:
        self.log.append(f"subscribe {','.join(topics)}")

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error

    async def stop(self) -> None:
        self.log.append("stop")
        if self.stops is not None:
            raise self.stops

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> Poll:
        self.asked.append((partitions, timeout_ms))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                polled = await self.polls.get()
        except TimeoutError:
            return {}
        if isinstance(polled, Exception):
            raise polled
        self.delivered.set()
        return polled

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.log.append("commit")
        if self.commit_error is not None:
            raise self.commit_error
        self.commits.append(dict(offsets))

    def highwater(self, partition: TopicPartition) -> int | None:
        return {A: 12}.get(partition)


class Stalled(Outbox):
    """Its brokers acknowledge nothing."""

    async def acknowledged(self) -> None:
        await asyncio.Event().wait()

    async def send(self, *args: object) -> "Stalled":  # type: ignore[override]
        await super().send(*args)  # type: ignore[arg-type]
        return self


class Member:
    def __init__(
        self, topic: Topic, outbox: Outbox, worker: WorkerConfig, metrics: Metrics, auto_offset_reset: Reset
    ) -> None:
        self._settled = asyncio.Event()
        self.client, self.topic, self.outbox, self.metrics = Client(), topic, outbox, metrics
        kafka = KafkaConfig(bootstrap_servers="localhost:1", auto_offset_reset=auto_offset_reset)
        self.consumer = Consumer(self.client, kafka, worker, {"t": topic}, metrics, SystemClock())

    async def rebalance(self, *assigned: TopicPartition) -> None:
        """What the client calls when the group changes."""
        await self.consumer.on_partitions_revoked(list(self.consumer._partitions))
        self.consumer.on_partitions_assigned(assigned)

    def settled(self) -> None:
        self.consumer.settled()
        self._settled.set()

    async def finished(self) -> None:
        """Nothing that was taken in is left."""
        while self.consumer.held:
            self._settled.clear()
            await self._settled.wait()

    @property
    def committed(self) -> dict[TopicPartition, int]:
        return {tp: at for commit in self.client.commits for tp, at in commit.items()}

    def lanes(self) -> dict[TopicPartition, str]:
        return {tp: partition.lane.name for tp, partition in self.consumer._partitions.items()}


@asynccontextmanager
async def member(
    package: Package,
    *,
    lanes: int = 2,
    outbox: Outbox | None = None,
    auto_offset_reset: Reset = "earliest",
    **worker: object,
) -> AsyncIterator[Member]:
    outbox, metrics = outbox or Outbox(), Metrics()
    options = WorkerConfig(**worker)  # type: ignore[arg-type]
    async with loaded(package, metrics=metrics, sections={"worker": options}) as topic:
        made = Member(topic, outbox, options, metrics, auto_offset_reset)
        async with running_lanes(topic, outbox, lanes, made.settled):
            yield made
