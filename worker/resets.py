"""Where reading begins without a committed offset, and where it goes on when that offset is gone.

Kafka's clients know one answer to both, `auto.offset.reset`. With "latest" that skips records which are there: all of
them where retention overtook the group, and those of a new partition that came before the group noticed it.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy

from worker.metrics import Metrics

EARLIEST: Final = OffsetResetStrategy.EARLIEST

log = logging.getLogger("scorelane.resets")


class Resets:
    """Rules over a client's resets: what was read before goes on at the earliest record, and so do partitions that a
    topic did not have when this member first saw it. `auto_offset_reset` decides about the rest alone."""

    def __init__(self, client: AIOKafkaConsumer, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._known: dict[str, int] = {}
        """Partitions of each topic when it was first seen."""

    def watch(self) -> None:
        """Before the client starts. From then on it holds for every partition that is assigned."""
        subscription = self._client._subscription
        assign = subscription.assign_from_subscribed

        def assign_and_watch(partitions: Iterable[TopicPartition]) -> None:
            assign(partitions)
            assignment = subscription.subscription.assignment
            for topic in subscription.subscription.topics:
                if numbers := self._client.partitions_for_topic(topic):
                    self._known.setdefault(topic, len(numbers))
            for partition in assignment.tps:
                self._watch(partition, assignment.state_value(partition))

        subscription.assign_from_subscribed = assign_and_watch

    def _watch(self, partition: TopicPartition, state: Any) -> None:
        await_reset, reset_to = state.await_reset, state.reset_to
        is_new = partition.partition >= self._known.get(partition.topic, partition.partition + 1)
        gone: int | None = None

        def await_our_reset(strategy: int) -> None:
            nonlocal gone
            if state.has_valid_position:
                gone = state.position
            await_reset(EARLIEST if is_new or gone is not None else strategy)

        def reset_and_tell(position: int) -> None:
            nonlocal gone
            reset_to(position)
            if gone is not None:
                before, gone = gone, None
                self._tell(partition, before, position)

        state.await_reset, state.reset_to = await_our_reset, reset_and_tell

    def _tell(self, partition: TopicPartition, gone: int, at: int) -> None:
        name = f"topic {partition.topic}, partition {partition.partition}"
        if at > gone:
            self._metrics.deleted.labels(partition.topic).inc(at - gone)
            log.warning(
                "%s: offsets %d to %d were deleted before they were read; reading goes on at %d: the worker is behind"
                " the topic's retention",
                *(name, gone, at - 1, at),
            )
        else:
            log.warning("%s: offset %d is beyond the end; reading begins again at %d", name, gone, at)
