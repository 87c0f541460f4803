"""Records from Kafka to the lanes, and the group's comings and goings."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from worker.batch import Record
from worker.binding import bind
from worker.clock import Clock
from worker.committer import Committer
from worker.config import KafkaConfig, WorkerConfig
from worker.errors import BrokerUnreachable, ConsumerFailed
from worker.fetching import LEAVE_S, agree, drop_held, expelled, fetch_error, keep_records_bare, position
from worker.metrics import Metrics
from worker.pacing import Pacing
from worker.partition import Partition, shown
from worker.refusals import group_remedy
from worker.shutdown import bounded
from worker.topic import Topic

log = logging.getLogger("scorelane.consumer")

MOST_RECORDS: Final = 16_384
"""Records of one poll. Best is all that the client has fetched: it fetches on only when nothing of it is left."""
TURN_RECORDS: Final = 2048
"""Records decoded without a turn of the loop, some 5 ms."""
IDLE_POLL_MS: Final = 500
"""How long a poll waits for the first record."""
PARTIAL_POLL_MS: Final = 20
"""The same while a full partition is left out, so that it is polled again soon after it has room."""
REBIND_INTERVAL_S: Final = 5.0
SETTLING_SHARE: Final = 0.2
"""Part of a drain that is kept for the batches in work, when there is no time for all that waits: published and not
committed, they would be scored again by the next owner."""


class Consumer(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """One member of the group.

    The client revokes everything at each rebalance. Revoked: intake stops, the lanes finish what they hold within
    `drain_timeout_ms`, what is settled is committed, the rest is fenced and left to the next owner; all of it where the
    group has expelled this member, since others score it already. Assigned: new partitions from the committed offsets.
    Records that a poll returns in between are dropped and come again: positions are reset to the committed ones.

    A partition whose lane is full is not polled. Nothing is paused: a pause drops what the client has fetched ahead.
    """

    def __init__(
        self,
        client: AIOKafkaConsumer,
        kafka: KafkaConfig,
        worker: WorkerConfig,
        topics: Mapping[str, Topic],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._worker = worker
        self._kafka = kafka
        self._metrics, self._clock = metrics, clock
        self._partitions: dict[TopicPartition, Partition] = {}
        self._open = self._stopping = self._taking_in = False
        self._failure: BaseException | None = None
        self._pacing = Pacing(kafka, (topic.config.budget_ms for topic in topics.values()))
        self._room = asyncio.Event()
        self.assigned_since: float | None = None
        """Monotonic second of the current assignment, None during a rebalance. An assignment may be empty."""
        self.last_poll = self.last_settled = clock.monotonic()
        self.left: list[str] = []
        """What a stop leaves undone, with the remedies."""
        self._consumer = client
        self.committer = Committer(self._consumer, self._positions, metrics, clock)

    async def start(self) -> None:
        """Join the group. Raises `BrokerUnreachable`."""
        self._consumer.subscribe(list(self._topics), listener=self)
        try:
            await self._consumer.start()
        except KafkaError as error:
            remedy = group_remedy(error, self._kafka, "check kafka.bootstrap_servers and that the topics exist")
            raise BrokerUnreachable(f"{error!r}; {remedy}") from error
        keep_records_bare(self._consumer)

    async def run(self) -> None:
        """Poll until cancelled or stopped. Raises `ConsumerFailed`."""
        while not self._stopping:
            room = [tp for tp, partition in self._partitions.items() if partition.has_room]
            self._room.clear()
            if self._partitions and not room:
                await self._wait_for_room()
                continue
            partial = len(room) < len(self._partitions)
            try:
                polled = await self._consumer.getmany(
                    *(room if partial else ()),
                    timeout_ms=PARTIAL_POLL_MS if partial else IDLE_POLL_MS,
                    max_records=MOST_RECORDS,
                )
            except Exception as error:
                # The client may have handed out records of one partition and failed on the next: they are lost to us,
                # its position is past them, and must not be committed.
                self._open = False
                if not isinstance(error, KafkaError):
                    raise
                lost = "nothing was committed for the records concerned, a restart reads them again"
                raise ConsumerFailed(f"{error!r}; {group_remedy(error, self._kafka, lost)}") from error
            owned = dict(self._partitions) if self._open else {}
            self._taking_in = bool(polled)
            self.last_poll = self._clock.monotonic()
            self._check_client()
            agree(self._consumer, self._pacing.after(sum(map(len, polled.values())), partial=partial))
            if polled:
                # The client sends its next fetch only when its tasks have run: three turns of the loop.
                for _ in range(3):
                    await asyncio.sleep(0)
                agree(self._consumer, self._pacing.usual)
                if not self.held:  # nothing could be settled meanwhile: the wait for it begins here
                    self.last_settled = self.last_poll
                await self._take_in(polled, owned)
                self._taking_in = False

    async def rebind(self) -> None:
        """Move partitions between lanes as their rates change, until cancelled."""
        while True:
            await asyncio.sleep(REBIND_INTERVAL_S)
            self._rebind(REBIND_INTERVAL_S)

    async def leave(self) -> None:
        """Stop polling, finish and commit what was taken in, within `drain_timeout_ms`; then leave the group."""
        self._stopping = True
        await self._give_up()
        await self.close()

    async def abort(self) -> None:
        """Leave without finishing: commit what is settled, fence the rest."""
        self._stopping, self._open = True, False
        await self._end()
        await self.close()

    async def close(self) -> None:
        """Close the client, started or not. Idempotent."""
        await bounded(self._consumer.stop(), LEAVE_S, "consumer")

    def settled(self) -> None:
        """A lane settled a batch: there is progress, and perhaps room."""
        self.last_settled = self._clock.monotonic()
        self._room.set()

    @property
    def held(self) -> int:
        """Records taken in and not yet settled."""
        return sum(partition.ledger.unsettled for partition in self._partitions.values())

    def lag(self) -> list[tuple[tuple[str, ...], float]]:
        """Records behind the end of each assigned partition, from the last fetch: ((topic, partition), lag)."""
        ends = [(tp, self._consumer.highwater(tp), owned.ledger.next_offset) for tp, owned in self._partitions.items()]
        return [
            ((tp.topic, str(tp.partition)), float(max(end - at, 0)))
            for tp, end, at in ends
            if end is not None and at is not None
        ]

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """The client swallows what is raised here, so a failure is kept and stops the polling."""
        self.assigned_since = None
        try:
            if self._partitions and expelled(self._consumer):
                log.warning("the group went on without this member; %d records are left to others", self.held)
                self._open = False
                await self.committer.forbid()
                self._fence()
            elif self._partitions:
                log.info("revoked: %s", shown(revoked))
                await self._give_up()
        except Exception as error:
            self._failure = error

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Synchronous on purpose: the client may deliver records while an asynchronous one is still running."""
        try:
            turns: Counter[str] = Counter()
            for tp in sorted(assigned):
                lanes = self._topics[tp.topic].lanes
                self._partitions[tp] = Partition(tp.topic, tp.partition, lanes[turns[tp.topic] % len(lanes)])
                turns[tp.topic] += 1
            self.assigned_since = self.last_settled = self.last_poll = self._clock.monotonic()
            self._metrics.rebalances.inc()
            self._open = not self._stopping
            self.committer.open()
            drop_held(self._consumer)
            log.info("assigned: %s", shown(assigned))
        except Exception as error:
            self._failure = error

    async def _take_in(
        self, polled: Mapping[TopicPartition, Sequence[Record]], owned: Mapping[TopicPartition, Partition]
    ) -> None:
        """A turn of the loop every `TURN_RECORDS`, so that lanes start while more is decoded; no more often, since what
        the lanes publish in one turn goes to the brokers in one request.

        `owned` is the assignment at the moment of the poll. What was revoked since then is dropped, also where it was
        assigned again: it is delivered again.
        """
        taken = 0
        for tp, records in polled.items():
            partition = self._partitions.get(tp)
            if partition is None or partition is not owned.get(tp) or not self._open:
                continue
            partition.taken += len(records)
            self._topics[tp.topic].take_in(partition, records)
            taken += len(records)
            if taken >= TURN_RECORDS:
                taken = 0
                await asyncio.sleep(0)

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(IDLE_POLL_MS / 1000):
                await self._room.wait()
        except TimeoutError:
            self._check_client()

    def _check_client(self) -> None:
        """Raise what the client keeps to itself: a dead fetch task delivers nothing while the member looks healthy."""
        if self._failure is not None:
            raise ConsumerFailed(f"a rebalance failed: {self._failure!r}") from self._failure
        if (error := fetch_error(self._consumer)) is not None:
            raise ConsumerFailed(f"the client's fetch task ended: {error!r}")

    async def _give_up(self) -> None:
        self._reach()
        self._open = False
        lanes = [lane for topic in self._topics.values() for lane in topic.lanes]
        settling_s = self._worker.drain_timeout_ms / 1000 * SETTLING_SHARE
        try:
            async with asyncio.timeout(self._worker.drain_timeout_ms / 1000 - settling_s):
                await asyncio.gather(*(lane.drain() for lane in lanes))
        except TimeoutError:
            log.warning("%d records cannot be finished within worker.drain_timeout_ms: what waits is left", self.held)
            try:
                async with asyncio.timeout(settling_s):
                    await asyncio.gather(*(lane.finish() for lane in lanes))
            except TimeoutError:
                log.warning("batches in work were not acknowledged in time; their scores may come twice")
        await self._end()

    async def _end(self) -> None:
        if not await self.committer.close() and self._stopping:
            self.left.append("the last commit failed, the scores since the one before come twice: check the brokers")
        if self.held and self._stopping:
            self.left.append(f"{self.held} records are left to the next owner: raise worker.drain_timeout_ms")
        self._fence()

    def _fence(self) -> None:
        for partition in self._partitions.values():
            if left := partition.ledger.unsettled:
                self._metrics.abandoned.labels(partition.topic).inc(left)
            partition.fence()
        self._partitions.clear()
        for topic in self._topics.values():
            for lane in topic.lanes:
                lane.drop()

    def _reach(self) -> None:
        """Tell the ledgers where the client is, while all that it has delivered is entered."""
        if self._open and not self._taking_in:
            for tp, partition in self._partitions.items():
                at = position(self._consumer, tp)
                # Where reading begins at the end, an end of 0 is committed too: what comes while nobody reads is ours.
                if at or (at is not None and self._kafka.auto_offset_reset == "latest"):
                    partition.ledger.reach(at)

    def _positions(self) -> dict[TopicPartition, int]:
        self._reach()
        return {tp: end for tp, p in self._partitions.items() if (end := p.ledger.next_offset) is not None}

    def _rebind(self, seconds: float) -> None:
        for name, topic in self._topics.items():
            mine = {tp.partition: p for tp, p in self._partitions.items() if tp.topic == name}
            if not mine:
                continue
            lanes = topic.lanes
            binding = bind(
                {number: partition.taken / seconds for number, partition in mine.items()},
                lanes=len(lanes),
                lane_rate=topic.lane_rate,
                bound={number: lanes.index(partition.lane) for number, partition in mine.items()},
            )
            for number, partition in mine.items():
                partition.taken = 0
                partition.move(lanes[binding[number]])
