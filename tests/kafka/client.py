"""What a test says to Kafka, in blocking calls: topics, records in, records out, offsets of a group."""

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.errors import for_code

from tests.kafka.process import wait_until

type Message = ConsumerRecord[bytes | None, bytes | None]
LARGEST = 120 << 20
"""Bytes of the largest record that the client writes and reads."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to write. `partition` None spreads the records round robin, `timestamp` in ms."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


class Client:
    """Runs its own event loop in a thread, so that tests stay plain functions. Close it before the broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafka-client", daemon=True)
        self._thread.start()
        self.producer: AIOKafkaProducer
        """For what `produce` is too slow; to be used on the client's loop only (`run`)."""
        self.run(self._start())

    def run[T](self, work: Coroutine[Any, Any, T], timeout_s: float = 120.0) -> T:
        """Run a coroutine on the client's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        try:
            self.run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def warm_up(self) -> None:
        """Have the internal topics of groups and transactions created and led, so that no test pays for it."""
        self.run(self._warm_up())

    def create_topic(self, name: str, partitions: int = 1, **configs: str | int) -> str:
        """Create and wait until it can be written. Config names take `_` for `.`. Returns the name."""
        return self.run(self._create_topic(name, partitions, {k.replace("_", "."): str(v) for k, v in configs.items()}))

    def grow_topic(self, name: str, partitions: int) -> None:
        """Raise the number of partitions and wait until all can be written."""
        self.run(self._grow_topic(name, partitions))

    def delete_topic(self, name: str) -> None:
        """Delete and wait until no broker knows it."""
        self.run(self._delete_topic(name))
        wait_until(lambda: name not in self.run(self._admin.list_topics()), f"{name} is gone", every_s=0.05)

    def produce(self, topic: str, records: Iterable[Record]) -> list[tuple[int, int]]:
        """Write and wait for the acknowledgements; (partition, offset) of each record."""
        return self.run(self._produce(topic, records))

    def read_all(self, topic: str) -> list[Message]:
        """Everything in the topic now, by partition and offset."""
        return self.run(self._read_all(topic))

    def read_until(self, topic: str, count: int, timeout_s: float = 60.0) -> list[Message]:
        """Everything in the topic as soon as there are at least `count` records."""
        wait_until(lambda: self.size(topic) >= count, f"{count} records in {topic}", timeout_s, every_s=0.05)
        return self.read_all(topic)

    def size(self, topic: str) -> int:
        """Records in the topic (of a topic without transactions and compaction)."""
        return sum(self.end_offsets(topic).values())

    def end_offsets(self, topic: str) -> dict[int, int]:
        return self.run(self._end_offsets(topic))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Committed offsets of a group; partitions without one are absent."""
        offsets = self.run(self._admin.list_consumer_group_offsets(group))
        return {tp.partition: meta.offset for tp, meta in offsets.items() if tp.topic == topic and meta.offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set offsets of a group that has no members, by partition."""
        self.run(self._commit(group, {TopicPartition(topic, number): at for number, at in offsets.items()}))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete what lies before these offsets, by partition."""
        self.run(
            self._admin.delete_records(
                {TopicPartition(topic, number): RecordsToDelete(at) for number, at in before.items()}
            )
        )

    def members(self, group: str) -> int:
        """Members of a stable group, 0 while it rebalances."""
        return self.run(self._members(group))

    async def _start(self) -> None:
        self.producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            max_batch_size=256 << 10,
            max_request_size=LARGEST,
            metadata_max_age_ms=10_000,
        )
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        self._offsets = AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
        for client in (self.producer, self._admin, self._offsets):
            await client.start()

    async def _stop(self) -> None:
        await self.producer.stop()
        await self._offsets.stop()
        await self._admin.close()

    async def _warm_up(self) -> None:
        warm = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id="warm-up")
        await warm.start()
        await warm.stop()
        topic = await self._create_topic("warm-up", 1, {})
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=self.bootstrap, group_id="warm-up")
        await consumer.start()
        await consumer.commit({TopicPartition(topic, 0): 0})
        await consumer.stop()

    async def _create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> str:
        answer = await self._admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(configs))])
        for topic, code, message in answer.topic_errors:
            if code:
                raise for_code(code)(f"{topic}: {message}")
        await self._until_written(name, partitions)
        return name

    async def _grow_topic(self, name: str, partitions: int) -> None:
        answer = await self._admin.create_partitions({name: NewPartitions(partitions)})
        for topic, code, message in answer.topic_errors:
            if code:
                raise for_code(code)(f"{topic}: {message}")
        await self._until_written(name, partitions)

    async def _until_written(self, name: str, partitions: int) -> None:
        async with asyncio.timeout(60):
            while len(await self.producer.client._wait_on_metadata(name)) < partitions:
                await self.producer.client.force_metadata_update()
            await self._end_offsets(name)

    async def _delete_topic(self, name: str) -> None:
        answer = await self._admin.delete_topics([name])
        for topic, code in answer.topic_error_codes:
            if code:
                raise for_code(code)(topic)

    async def _produce(self, topic: str, records: Iterable[Record]) -> list[tuple[int, int]]:
        partitions = await self.producer.partitions_for(topic)
        turn = itertools.cycle(sorted(partitions))
        pending = [
            await self.producer.send(
                topic,
                record.value,
                key=record.key,
                partition=next(turn) if record.partition is None else record.partition,
                headers=list(record.headers),
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        return [(done.partition, done.offset) for done in await asyncio.gather(*pending)]

    async def _read_all(self, topic: str) -> list[Message]:
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=20,
            max_partition_fetch_bytes=4 << 20,
        ) as consumer:
            partitions = await self._partitions(topic)
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            records: list[Message] = []
            for partition in partitions:
                while await consumer.position(partition) < ends[partition]:
                    records += (await consumer.getmany(partition, timeout_ms=200)).get(partition, [])
        return sorted(records, key=lambda record: (record.partition, record.offset))

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in sorted(await self.producer.partitions_for(topic))]

    async def _end_offsets(self, topic: str) -> dict[int, int]:
        ends = await self._offsets.end_offsets(await self._partitions(topic))
        return {partition.partition: offset for partition, offset in ends.items()}

    async def _commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        # With its automatic commit on, closing the consumer would write the position over the offsets, once it has one.
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False
        ) as consumer:
            consumer.assign(list(offsets))
            await consumer.commit(dict(offsets))

    async def _members(self, group: str) -> int:
        (answer,) = await self._admin.describe_consumer_groups([group])
        _, _, state, _, _, members, *_ = answer.groups[0]
        return len(members) if state == "Stable" else 0
