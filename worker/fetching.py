"""What aiokafka's consumer does not offer and its fetcher has; the one place that reaches inside it.

Written for aiokafka 0.14 (pinned below 0.15 in pyproject.toml).
"""

from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition


def keep_records_bare(consumer: AIOKafkaConsumer) -> None:
    """From now on polls return the records as the client's compiled decoder made them, with `offset`, `timestamp`,
    `key`, `value` and `headers`, instead of a `ConsumerRecord` for each: that costs as much as decoding the event."""
    consumer._fetcher._records = _Results(consumer._fetcher._records)


def hold_back(consumer: AIOKafkaConsumer, wait_ms: int) -> None:
    """How long the brokers hold back empty answers from the next fetch on."""
    consumer._fetcher._fetch_max_wait_ms = wait_ms


def fetch_error(consumer: AIOKafkaConsumer) -> BaseException | None:
    """Why the client's fetch task ended, None while it runs. It ends in silence: polls return nothing from then on."""
    future = consumer._fetcher.error_future
    return future.exception() or RuntimeError("ended without an error") if future.done() else None


class _Results(dict[TopicPartition, Any]):
    """The fetcher's results by partition, each told to hand its records on as they are."""

    def __setitem__(self, partition: TopicPartition, result: Any) -> None:
        records = getattr(result, "_partition_records", None)  # absent where the result is an error
        if records is not None:
            records._consumer_record = _as_it_is
        super().__setitem__(partition, result)


def _as_it_is(_: TopicPartition, record: Any) -> Any:
    return record
