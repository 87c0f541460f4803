"""Scores and dead letters to Kafka: whole batches per partition, awaited before an offset moves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder

from schemas.dead_letter import Header
from worker.config import KafkaConfig, WorkerConfig
from worker.errors import BrokerUnreachable, PublishFailed
from worker.reconnect import pause_between_failures
from worker.refusals import lookup_remedy, send_remedy
from worker.shutdown import bounded

log = logging.getLogger("scorelane.publisher")
topics_log = logging.getLogger("scorelane.topics")
"""Of topics that are looked up, which are the input's too."""

BATCH_BYTES: Final = 262_144
"""Uncompressed bytes of one produced batch; below every broker's default limit of a message set (1 MB)."""

TOPIC_S: Final = 10.0
"""For a topic that is not there to be created by the brokers or by someone else."""

TOLD_S: Final = 1.0

TRUNCATED_BYTES: Final = 1024
"""What is kept of the value of a single message that the brokers refuse as too large."""


@dataclass(slots=True)
class Messages:
    """Messages of one partition as columns, in order. `headers` None: none has any."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[list[Header]] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: list[bytes | None], values: Sequence[bytes | None]) -> None:
        """Append messages without headers."""
        self.keys += keys
        self.values += values

    def add_one(self, key: bytes | None, value: bytes | None, headers: list[Header]) -> None:
        if self.headers is None:
            self.headers = []
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)

    def cut(self, start: int, stop: int) -> Messages:
        headers = self.headers[start:stop] if self.headers is not None else None
        return Messages(self.keys[start:stop], self.values[start:stop], headers)


class Acknowledgement(Protocol):
    async def acknowledged(self) -> None:
        """Wait until the brokers have every message. Raises `PublishFailed`."""


class Sender(Protocol):
    async def send(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> Acknowledgement:
        """Queue messages, in order, for a partition. Raises `PublishFailed`."""


class Delivery:
    """Messages handed to the producer and not yet acknowledged."""

    __slots__ = ("_partition", "_publisher", "_sent", "_timestamp_ms", "_topic")

    def __init__(
        self,
        publisher: Publisher,
        topic: str,
        partition: int,
        timestamp_ms: int,
        sent: list[tuple[Messages, asyncio.Future[object]]],
    ) -> None:
        self._publisher = publisher
        self._topic = topic
        self._partition = partition
        self._timestamp_ms = timestamp_ms
        self._sent = sent

    async def acknowledged(self) -> None:
        """Wait until the brokers have every message. Raises `PublishFailed`."""
        for messages, future in self._sent:
            try:
                await future
            except MessageSizeTooLargeError:
                await self._publisher.resend_smaller(self._topic, self._partition, messages, self._timestamp_ms)
            except KafkaError as error:
                raise PublishFailed(
                    f"topic {self._topic}, partition {self._partition}: {len(messages)} messages were not acknowledged:"
                    f" {error!r}; no offset was moved for them; {send_remedy(error, self._topic)}"
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
        pause_between_failures(self._producer.client)
        self._servers = kafka.bootstrap_servers
        self._asked: dict[str, int] = {}
        """Partition numbers below which the brokers were asked for a topic's count."""

    async def start(self) -> None:
        """Connect. Raises `BrokerUnreachable`."""
        try:
            await self._producer.start()
        except KafkaError as error:
            with contextlib.suppress(Exception):
                await self._producer.stop()
            # The client's own words are its list of addresses.
            problem = "no broker can be reached" if isinstance(error, KafkaConnectionError) else repr(error)
            remedy = "check kafka.bootstrap_servers and the security settings"
            raise BrokerUnreachable(f"{self._servers}: {problem}; {remedy}") from error

    async def stop(self, timeout_s: float) -> None:
        """Flush and close; left behind after `timeout_s`, since the client's own stop can hang without brokers."""
        await bounded(self._producer.stop(), timeout_s, "producer")

    async def partition_count(self, topic: str) -> int:
        """Partitions of a topic. Raises `PublishFailed` when it does not exist (and the brokers do not create it)."""
        known = self._producer.client.cluster.partitions_for_topic(topic)
        if known is not None:  # a microsecond, the rest thirty
            return len(known)
        waits = "topic %s: unknown to the brokers; waiting up to %.0f s for it"
        told = asyncio.get_running_loop().call_later(TOLD_S, topics_log.warning, waits, topic, TOPIC_S)
        try:
            async with asyncio.timeout(TOPIC_S):
                partitions = await self._producer.partitions_for(topic)
        except TimeoutError as error:
            problem = f"unknown to the brokers for {TOPIC_S:.0f} s"
            raise PublishFailed(f"topic {topic}: {problem}; {lookup_remedy(error, topic)}") from None
        except KafkaError as error:
            raise PublishFailed(f"topic {topic}: {error!r}; {lookup_remedy(error, topic)}") from error
        finally:
            told.cancel()
        return len(partitions)

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of each topic. Raises `PublishFailed` with a line for each that does not exist."""
        names = list(dict.fromkeys(topics))
        answers = await asyncio.gather(*map(self.partition_count, names), return_exceptions=True)
        counts: dict[str, int] = {}
        missing: list[str] = []
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, PublishFailed):
                missing.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                counts[name] = answer
        if missing:
            raise PublishFailed("\n".join(missing))
        return counts

    async def _partition(self, topic: str, number: int) -> int:
        """The partition of a number, modulo the topic's count as the client knows it: it looks it up every
        `kafka.metadata_max_age_ms`. At once for a number that comes first: the input may have grown, and this topic
        with it. Raises `PublishFailed`."""
        count = await self.partition_count(topic)
        if number >= max(count, self._asked.get(topic, 0)):
            await self._producer.client.force_metadata_update()
            self._asked[topic] = number + 1
            count = await self.partition_count(topic)
        return number % count

    async def send(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> Delivery:
        """Queue messages, in order, for the partition of the same number (modulo the topic's count).

        Returns when they are queued; waits while an earlier batch of the partition is queued. Raises `PublishFailed`.
        """
        partition = await self._partition(topic, partition)
        sent: list[tuple[Messages, asyncio.Future[object]]] = []
        start = 0
        while start < len(messages):
            builder = self._producer.create_batch()
            stop = start + _fill(builder, messages.cut(start, len(messages)) if start else messages, timestamp_ms)
            if stop == start:
                raise PublishFailed(f"topic {topic}: a message does not fit into an empty batch; this is a bug")
            builder.close()
            try:
                future = await self._producer.send_batch(builder, topic, partition=partition)
            except KafkaError as error:
                raise PublishFailed(
                    f"topic {topic}, partition {partition}: {error!r}; no offset was moved; check the brokers"
                ) from error
            sent.append((messages.cut(start, stop) if stop - start < len(messages) else messages, future))
            start = stop
        return Delivery(self, topic, partition, timestamp_ms, sent)

    async def resend_smaller(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> None:
        """After "too large": halves, down to one message, whose largest part is then cut. Raises `PublishFailed`."""
        if len(messages) > 1:
            middle = len(messages) // 2
            for half in (messages.cut(0, middle), messages.cut(middle, len(messages))):
                await (await self.send(topic, partition, half, timestamp_ms)).acknowledged()
            return
        smaller, what = _smaller(messages)
        if smaller is None:
            raise PublishFailed(
                f"topic {topic}: a message whose largest part is {what} is too large for the brokers; raise the topic's"
                " max.message.bytes"
            )
        log.warning("topic %s: a message is too large for the brokers and goes without %s", topic, what)
        await (await self.send(topic, partition, smaller, timestamp_ms)).acknowledged()


def _smaller(messages: Messages) -> tuple[Messages | None, str]:
    """The one message without its largest part, and what that is: the value is cut at its end, the key or the headers
    that are not ours are left out. None when that part is no larger than `TRUNCATED_BYTES`."""
    (key,), (value,) = messages.keys, messages.values
    headers = messages.headers[0] if messages.headers else []
    own = [header for header in headers if header[0].startswith("scorelane.")]
    sizes = {
        "value": len(value or b""),
        "key": len(key or b""),
        "headers": sum(
            len(name.encode()) + len(of or b"") for name, of in headers if not name.startswith("scorelane.")
        ),
    }
    part = max(sizes, key=sizes.__getitem__)
    size = sizes[part]
    if size <= TRUNCATED_BYTES:
        return None, f"a {part} of {size} bytes"
    smaller = Messages()
    if part == "value":
        smaller.add_one(key, (value or b"")[:TRUNCATED_BYTES], _noting(headers, "scorelane.truncated", size))
    elif part == "key":
        smaller.add_one(None, value, _noting(headers, "scorelane.dropped_key", size))
    else:
        smaller.add_one(key, value, _noting(own, "scorelane.dropped_headers", len(headers) - len(own)))
    return smaller, f"its {part} of {size} bytes"


def _noting(headers: list[Header], name: str, number: int) -> list[Header]:
    """With what was left out, unless an earlier cut says more of it already."""
    return headers if any(of == name for of, _ in headers) else [*headers, (name, b"%d" % number)]


def _fill(builder: BatchBuilder, messages: Messages, timestamp_ms: int) -> int:
    """Append to an empty batch until it is full; how many are in.

    Goes to the compiled builder inside: `BatchBuilder.append` only adds serializers, which there are none of, and takes
    as long again.
    """
    append = builder._builder.append
    headers: Iterable[list[Header]] = messages.headers if messages.headers is not None else repeat([])
    appended = 0
    for key, value, of_one in zip(messages.keys, messages.values, headers, strict=False):
        if append(appended, timestamp_ms, key=key, value=value, headers=of_one) is None:
            break
        appended += 1
    builder._relative_offset = appended
    return appended
