"""Scores and dead letters to Kafka: whole batches per partition, awaited before an offset moves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, UnknownTopicOrPartitionError

from worker.config import KafkaConfig, WorkerConfig
from worker.errors import BrokerUnreachable, PublishFailed
from worker.shutdown import bounded

log = logging.getLogger("scorelane.publisher")

BATCH_BYTES: Final = 262_144
"""Uncompressed bytes of one produced batch; below every broker's default limit of a message set (1 MB)."""

TRUNCATED_BYTES: Final = 1024
"""What is kept of a single value that the broker refuses as too large."""


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Delivery:
    """Messages handed to the producer and not yet acknowledged."""

    __slots__ = ("_partition", "_publisher", "_sent", "_topic")

    def __init__(
        self,
        publisher: Publisher,
        topic: str,
        partition: int,
        sent: list[tuple[Sequence[Message], asyncio.Future[object]]],
    ) -> None:
        self._publisher = publisher
        self._topic = topic
        self._partition = partition
        self._sent = sent

    async def acknowledged(self) -> None:
        """Wait until the brokers have every message. Raises `PublishFailed`."""
        for messages, future in self._sent:
            try:
                await future
            except MessageSizeTooLargeError:
                await self._publisher.resend_smaller(self._topic, self._partition, messages)
            except KafkaError as error:
                raise PublishFailed(
                    f"topic {self._topic}, partition {self._partition}: {len(messages)} messages were not acknowledged:"
                    f" {error!r}; no offset was moved for them; check the brokers and the topic's limits"
                ) from error


class Publisher:
    """One producer, acks=all, not idempotent: an idempotent one retries without end and cannot be stopped in time."""

    def __init__(self, kafka: KafkaConfig, worker: WorkerConfig) -> None:
        self._producer = AIOKafkaProducer(
            **{**kafka.client_args(), "request_timeout_ms": worker.publish_timeout_ms},
            acks="all",
            max_batch_size=BATCH_BYTES,
            max_request_size=max(BATCH_BYTES, worker.dead_letter_max_bytes) + BATCH_BYTES,
            compression_type=None if worker.compression == "none" else worker.compression,
            linger_ms=0,
        )
        self._timeout_s = worker.publish_timeout_ms / 1000
        self._partitions: dict[str, int] = {}

    async def start(self) -> None:
        """Connect. Raises `BrokerUnreachable`."""
        try:
            await self._producer.start()
        except KafkaError as error:
            with contextlib.suppress(Exception):
                await self._producer.stop()
            raise BrokerUnreachable(f"{error}; check kafka.bootstrap_servers and the security settings") from error

    async def stop(self, timeout_s: float) -> None:
        """Flush and close; left behind after `timeout_s`, since the client's own stop can hang without brokers."""
        await bounded(self._producer.stop(), timeout_s, "producer")

    async def partition_count(self, topic: str) -> int:
        """Partitions of a topic. Raises `PublishFailed` when it does not exist (and the brokers do not create it)."""
        try:
            partitions = await self._producer.partitions_for(topic)
        except (UnknownTopicOrPartitionError, KafkaError) as error:
            raise PublishFailed(f"topic {topic}: {error}; create it, or let the brokers create topics") from error
        self._partitions[topic] = len(partitions)
        return len(partitions)

    async def send(self, topic: str, partition: int, messages: Sequence[Message]) -> Delivery:
        """Queue messages, in order, for the partition of the same number (modulo the topic's count).

        Returns when they are queued; waits while an earlier batch of the partition is queued. Raises `PublishFailed`.
        """
        count = self._partitions.get(topic) or await self.partition_count(topic)
        partition %= count
        sent: list[tuple[Sequence[Message], asyncio.Future[object]]] = []
        start = 0
        while start < len(messages):
            builder = self._producer.create_batch()
            append = builder.append
            stop = start
            for key, value, timestamp, headers in messages[start:] if start else messages:
                if append(timestamp=timestamp, key=key, value=value, headers=list(headers) if headers else []) is None:
                    break
                stop += 1
            if stop == start:
                raise PublishFailed(f"topic {topic}: a message does not fit into an empty batch; this is a bug")
            builder.close()
            try:
                future = await self._producer.send_batch(builder, topic, partition=partition)
            except KafkaError as error:
                raise PublishFailed(
                    f"topic {topic}, partition {partition}: {error!r}; no offset was moved; check the brokers"
                ) from error
            sent.append((messages[start:stop] if stop - start < len(messages) else messages, future))
            start = stop
        return Delivery(self, topic, partition, sent)

    async def resend_smaller(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        """After "too large": halves, down to one message, whose value is then cut. Raises `PublishFailed`."""
        if len(messages) > 1:
            middle = len(messages) // 2
            for half in (messages[:middle], messages[middle:]):
                await (await self.send(topic, partition, half)).acknowledged()
            return
        message = messages[0]
        size = len(message.value or b"")
        if size <= TRUNCATED_BYTES:
            raise PublishFailed(
                f"topic {topic}: a message of {size} bytes is too large for the brokers; raise the topic's"
                " max.message.bytes"
            )
        log.warning("topic %s: a value of %d bytes is too large for the brokers and is cut", topic, size)
        headers = [*message.headers, ("scorelane.truncated", str(size).encode())]
        cut = message._replace(value=(message.value or b"")[:TRUNCATED_BYTES], headers=headers)
        await (await self.send(topic, partition, [cut])).acknowledged()
