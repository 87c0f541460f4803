"""A broker in memory: records that are there from their time on, and scores that are acknowledged after a while.

`MemoryClient` stands for the consumer's Kafka client, `MemoryPublisher` for the publisher.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from math import inf
from types import SimpleNamespace
from typing import Final

from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener

from schemas.dead_letter import Header
from worker.pacing import Terms
from worker.publisher import Messages
from worker.replay.clock import ReplayClock

RECORD_BYTES: Final = 10
"""Of a record beside its key, value and headers, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the broker and the worker's own work take, in seconds."""

    fetch_s: float = 0.002
    """Of one fetch and its answer; the next one is sent after it. A record is half of that on its way."""
    poll_s: float = 100e-6
    """Of the event loop for one poll that brings something."""
    record_s: float = 2.5e-6
    """Of the event loop to take in one record."""
    publish_s: float = 1.5e-6
    """Of the event loop to publish one score."""
    ack_s: float = 0.002
    """Until the brokers acknowledge a batch."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A record, and the second of the replay at which it comes. A `worker.batch.Record`."""

    at: float
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def size(self) -> int:
        """Bytes at the broker, without compression."""
        named = sum(len(name) + len(value or b"") for name, value in self.headers)
        return RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + named


class MemoryClient:
    """What `worker.consumer.Consumer` uses of an `AIOKafkaConsumer`, for one member that owns all partitions.

    One broker, and one fetch at a time: sent when a poll has brought something, answered on the terms that the consumer
    agreed to right after the poll, with all that is there when it is polled. After an empty answer the broker waits for
    the next record: that fetch comes without a gap, and how long empty answers are held back has no effect.
    """

    def __init__(self, topic: str, partitions: Sequence[Sequence[Arrival]], clock: ReplayClock, costs: Costs) -> None:
        """`partitions[i]`: records of partition i, in the order of their arrivals and of their offsets, from 0."""
        self.committed: dict[TopicPartition, int] = {}
        self.exhausted = asyncio.Event()
        """Set once every record was polled, and there was another poll after that."""
        self._records = {TopicPartition(topic, number): records for number, records in enumerate(partitions)}
        self._there = {
            tp: [record.at + costs.fetch_s / 2 for record in records] for tp, records in self._records.items()
        }
        self._bytes = {
            tp: list(accumulate((record.size for record in records), initial=0))
            for tp, records in self._records.items()
        }
        self._next = dict.fromkeys(self._records, 0)
        self._fetched_at = -inf
        self._terms = Terms(1, 0)
        self._clock = clock
        self._costs = costs
        self._listener: ConsumerRebalanceListener
        # The consumer looks whether the client's own task has died.
        self._fetcher = SimpleNamespace(
            error_future=asyncio.get_running_loop().create_future(),
            _fetch_min_bytes=1,
            _fetch_max_wait_ms=0,
            _records={},
        )
        self._client = SimpleNamespace(_conns={})
        # Nor is there a client's own position, or a group that could expel it.
        self._subscription = SimpleNamespace(subscription=None)
        self._coordinator = SimpleNamespace(generation=1)

    def subscribe(self, topics: list[str], listener: ConsumerRebalanceListener) -> None:
        self._listener = listener

    async def start(self) -> None:
        self._listener.on_partitions_assigned(list(self._records))

    async def stop(self) -> None:
        """Nothing is open."""

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, Sequence[Arrival]]:
        if not any(map(self._left, self._records)):
            self.exhausted.set()
        asked = partitions or tuple(self._records)
        wait_s = self._answered_at(asked) - self._clock.elapsed
        await asyncio.sleep(max(min(wait_s, timeout_ms / 1000.0), 0.0))
        polled = self._ready(asked, max_records) if wait_s <= timeout_ms / 1000.0 else {}
        if polled:
            self._fetched_at = self._clock.elapsed
            # The fetch is sent in the next turn of the loop.
            asyncio.get_running_loop().call_soon(self._send)
            records = sum(map(len, polled.values()))
            self._clock.spend(self._costs.poll_s + self._costs.record_s * records)
        return polled

    def highwater(self, tp: TopicPartition) -> int:
        return self._there_by_now(tp)

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        self.committed.update(positions)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Offset after the last record of each partition that has any."""
        return {tp: len(records) for tp, records in self._records.items() if records}

    def _send(self) -> None:
        self._terms = Terms(self._fetcher._fetch_min_bytes, self._fetcher._fetch_max_wait_ms)

    def _answered_at(self, asked: Sequence[TopicPartition]) -> float:
        """Second at which the answer to the fetch in work is here; never, where no more records come."""
        at_once = self._fetched_at + self._costs.fetch_s
        at_last = at_once + self._terms.wait_ms / 1000.0
        first = min((self._there[tp][self._next[tp]] for tp in asked if self._left(tp)), default=inf)
        if first >= at_last:
            return first
        times = sorted(chain.from_iterable(self._there[tp][self._next[tp] : self._by(tp, at_last)] for tp in asked))
        enough = bisect_left(times, self._terms.min_bytes, key=partial(self._bytes_by, asked))
        return max(at_once, times[enough] if enough < len(times) else at_last)

    def _bytes_by(self, asked: Sequence[TopicPartition], at: float) -> int:
        """Bytes of what is there at that second and was not polled yet."""
        return sum(self._bytes[tp][self._by(tp, at)] - self._bytes[tp][self._next[tp]] for tp in asked)

    def _ready(self, asked: Sequence[TopicPartition], room: int) -> dict[TopicPartition, Sequence[Arrival]]:
        polled: dict[TopicPartition, Sequence[Arrival]] = {}
        for tp in asked:
            start = self._next[tp]
            stop = min(self._there_by_now(tp), start + room)
            if stop > start:
                polled[tp] = self._records[tp][start:stop]
                self._next[tp] = stop
                room -= stop - start
        return polled

    def _there_by_now(self, tp: TopicPartition) -> int:
        # A timer may fire the rounding of a float before its time.
        return self._by(tp, self._clock.elapsed + 1e-9)

    def _by(self, tp: TopicPartition, at: float) -> int:
        """Offset after the last record that is there at that second."""
        return bisect_right(self._there[tp], at)

    def _left(self, tp: TopicPartition) -> bool:
        return self._next[tp] < len(self._records[tp])


Receive = Callable[[str, Messages, float], None]
"""Told of messages: topic, messages, second of the replay at which they are acknowledged."""


class MemoryPublisher:
    """A `worker.publisher.Sender` whose brokers acknowledge in order."""

    def __init__(self, receive: Receive, clock: ReplayClock, costs: Costs) -> None:
        self._receive = receive
        self._clock = clock
        self._costs = costs

    async def send(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> Acknowledged:
        self._clock.spend(self._costs.publish_s * len(messages))
        at = self._clock.elapsed + self._costs.ack_s
        self._receive(topic, messages, at)
        return Acknowledged(self._clock, at)


class Acknowledged:
    def __init__(self, clock: ReplayClock, at: float) -> None:
        self._clock = clock
        self._at = at

    async def acknowledged(self) -> None:
        await asyncio.sleep(max(self._at - self._clock.elapsed, 0.0))
