"""Committing offsets: one at a time, bounded, and never for partitions that may belong to someone else."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from worker.clock import Clock
from worker.metrics import Metrics

log = logging.getLogger("scorelane.committer")

COMMIT_TIMEOUT_S: Final = 5.0
"""The client retries a commit without end; the next tick does it with newer offsets."""


class Committer:
    """Open between an assignment and the end of the next revocation, closed in between.

    The client binds a commit to the generation of the moment it is sent, not to the one its offsets belong to, and
    brokers do not check ownership: a commit that crosses a rebalance could move another member's offset. So commits
    are serialised with the revocation, and after a refused one there is none until the next assignment.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        positions: Callable[[], dict[TopicPartition, int]],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`positions` gives the offsets that may be committed now."""
        self._consumer = consumer
        self._positions = positions
        self._metrics = metrics
        self._clock = clock
        self._lock = asyncio.Lock()
        self._open = False
        self._committed: dict[TopicPartition, int] = {}
        self._asked_at: float | None = None
        """When the first commit was sent of those that have failed since."""

    @property
    def failing_s(self) -> float:
        """Seconds that commits have been sent and none has succeeded; 0 while none is to be."""
        return 0.0 if self._asked_at is None else max(self._clock.monotonic() - self._asked_at, 0.0)

    def open(self) -> None:
        """After an assignment."""
        self._committed.clear()
        self._asked_at = None
        self._open = True

    async def run(self, interval_s: float) -> None:
        """Commit what has moved, every interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.commit()

    async def close(self) -> bool:
        """The last commit of an assignment; nothing is committed after it until `open`. Returns whether it succeeded,
        or there was none to make."""
        async with self._lock:
            committed = not self._open or await self._commit()
            self._close()
            return committed

    async def forbid(self) -> None:
        """No commit until `open`; one that is on its way is awaited."""
        async with self._lock:
            self._close()

    async def commit(self) -> bool:
        """Commit positions that have moved. Returns whether everything that had moved is committed."""
        async with self._lock:
            return await self._commit()

    async def _commit(self) -> bool:
        if not self._open:
            return False
        moved = {tp: at for tp, at in self._positions().items() if self._committed.get(tp) != at}
        if not moved:
            return True
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await self._consumer.commit(moved)
        except (CommitFailedError, IllegalStateError) as error:
            self._close()
            self._metrics.commits.labels("fenced").inc()
            cause = error.__cause__ or error
            log.warning("commit refused, the group has moved on; waiting for the next assignment: %r", cause)
            return False
        except (KafkaError, TimeoutError) as error:
            self._metrics.commits.labels("failed").inc()
            silent = isinstance(error, TimeoutError) and not isinstance(error, KafkaError)
            why = f"the group coordinator did not answer in {COMMIT_TIMEOUT_S:g} s" if silent else repr(error)
            log.warning("commit of %d partitions failed and is tried again: %s", len(moved), why)
            return False
        self._committed.update(moved)
        self._metrics.commits.labels("ok").inc()
        self._asked_at = None
        return True

    def _close(self) -> None:
        self._open = False
        self._asked_at = None
