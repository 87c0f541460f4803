"""aiokafka's consumer as we use it, and what only its insides have; the one place that reaches for them, beside
`worker/reconnect.py`, `worker/connection.py` and `worker/resets.py`.

Written for aiokafka 0.14 (pinned below 0.15 in pyproject.toml).
"""

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.consumer import fetcher
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

from worker.config import KafkaConfig
from worker.pacing import Terms
from worker.reconnect import pause_between_failures

BATCH_START: Final = struct.Struct(">qiib")
"""Of a batch of records: base offset, length of what follows the length, leader epoch, magic."""
LENGTH_END: Final = 12
LEAVE_S: Final = 5.0
"""For a client's own stop, which can hang without brokers."""


def client_of(kafka: KafkaConfig, member: int = 0) -> AIOKafkaConsumer:
    """The Kafka client of one member of the group, as `Consumer` needs it. `member` is its number in this process's
    supervisor."""
    consumer = AIOKafkaConsumer(
        **kafka.client_args(),
        group_id=kafka.group_id,
        group_instance_id=f"{kafka.group_instance_id}-{member}" if kafka.group_instance_id else None,
        auto_offset_reset=kafka.auto_offset_reset,
        isolation_level=kafka.isolation_level,
        enable_auto_commit=False,
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        session_timeout_ms=kafka.session_timeout_ms,
        heartbeat_interval_ms=kafka.heartbeat_interval_ms,
        rebalance_timeout_ms=kafka.rebalance_timeout_ms,
        # The client's own check is disabled for good by one failed poll; the service watches the progress.
        max_poll_interval_ms=86_400_000,
        fetch_max_wait_ms=kafka.fetch_max_wait_ms,
        fetch_max_bytes=kafka.fetch_max_bytes,
        max_partition_fetch_bytes=kafka.max_partition_fetch_bytes,
        check_crcs=kafka.check_crcs,
    )
    pause_between_failures(consumer._client)
    return consumer


def keep_records_bare(consumer: AIOKafkaConsumer) -> None:
    """From now on polls return the records as the client's compiled decoder made them, with `offset`, `timestamp`,
    `key`, `value` and `headers`, instead of a `ConsumerRecord` for each: that costs as much as decoding the event.

    Header names that are no UTF-8 have escapes in them. The client's decoder raises on them, at every poll anew.
    """
    fetcher.MemoryRecords = _Source
    consumer._fetcher._records = _Results(consumer._fetcher._records)


def agree(consumer: AIOKafkaConsumer, terms: Terms) -> None:
    """When the brokers answer, from the next fetch on."""
    consumer._fetcher._fetch_min_bytes, consumer._fetcher._fetch_max_wait_ms = terms


def drop_held(consumer: AIOKafkaConsumer) -> None:
    """Forget fetches that brokers still hold back from before an assignment. The client has, but brokers answer in
    order: the first fetch of new partitions would wait behind one of the old ones for as long as that was to wait."""
    for (_, group), connection in list(consumer._client._conns.items()):
        if group == ConnectionGroup.DEFAULT and connection._requests:
            connection.close()


def fetch_error(consumer: AIOKafkaConsumer) -> BaseException | None:
    """Why the client's fetch task ended, None while it runs. It ends in silence: polls return nothing from then on."""
    future = consumer._fetcher.error_future
    return future.exception() or RuntimeError("ended without an error") if future.done() else None


def position(consumer: AIOKafkaConsumer, partition: TopicPartition) -> int | None:
    """Offset at which the next poll of the partition goes on, None while it is not known (its first one is asked for).

    Unlike the offset after the last record it is past transaction markers, and there before the first record is.
    """
    subscription = consumer._subscription.subscription
    assignment = subscription.assignment if subscription is not None else None
    if assignment is None or partition not in assignment.tps:
        return None
    state = assignment.state_value(partition)
    return int(state.position) if state.has_valid_position else None


def expelled(consumer: AIOKafkaConsumer) -> bool:
    """Whether the group no longer knows this member (it was silent for too long): others have its partitions."""
    return bool(consumer._coordinator.generation < 0)


class _Results(dict[TopicPartition, Any]):
    """The fetcher's results by partition, each told to hand its records on as they are."""

    def __setitem__(self, partition: TopicPartition, result: Any) -> None:
        records = getattr(result, "_partition_records", None)  # absent where the result is an error
        if records is not None:
            records._consumer_record = _as_it_is
            records._records_iterator = _unpack(records)
        super().__setitem__(partition, result)


def _as_it_is(_: TopicPartition, record: Any) -> Any:
    return record


class _Source(MemoryRecords):  # type: ignore[misc]  # a class behind a type
    """The compiled decoder, and the bytes that it reads."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.raw = raw


def _unpack(records: Any) -> Iterator[Any]:
    """All records. From the first header name on that is no UTF-8 they come from the slow decoder."""
    source = records._records
    try:
        yield from records._unpack_records()
    except UnicodeDecodeError:
        records._records = _Rest(source.raw, records.next_fetch_offset)
        yield from records._unpack_records()


class _Rest:
    """The batches of `raw` that have records from `offset` on, in place of the compiled decoder."""

    def __init__(self, raw: bytes, offset: int) -> None:
        self._batches: deque[Any] = deque()
        at = 0
        while at + BATCH_START.size <= len(raw):
            _, length, _, magic = BATCH_START.unpack_from(raw, at)
            end = at + LENGTH_END + length
            if end > len(raw):  # the brokers cut the last one
                break
            part = raw[at:end]
            batch = _EscapingBatch(part) if magic >= 2 else MemoryRecords(part).next_batch()
            if batch.next_offset > offset:
                self._batches.append(batch)
            at = end

    def has_next(self) -> bool:
        return bool(self._batches)

    def next_batch(self) -> Any:
        return self._batches.popleft()


class _EscapingBatch(_DefaultRecordBatchPy):  # type: ignore[misc]  # final for its authors
    """The client's decoder in Python, on a buffer whose parts decode with escapes for what is no UTF-8."""

    def __iter__(self) -> Self:
        super().__iter__()
        self._buffer: bytearray = _Buffer(self._buffer)
        return self


class _Buffer(bytearray):
    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        return _Text(part) if isinstance(at, slice) else part


class _Text(bytes):
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return super().decode(encoding, "backslashreplace")
