"""A lane: its waiting rows, its session, and the way from a batch to settled offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from worker.batch import Batch, Chunk
from worker.batcher import Batcher, ClosedBy
from worker.clock import Clock
from worker.delivery import DeliveryDesk
from worker.dispatcher import Dispatcher, Outcome
from worker.publisher import Delivery
from worker.service_time import ServiceTime

log = logging.getLogger("scorelane.lane")

UNACKNOWLEDGED_BATCHES = 8
"""Batches of one lane that may be published and not yet acknowledged."""


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """Above either bound the lane's partitions are not polled. Counted from taking in to acknowledgement."""

    rows: int
    nbytes: int


class Lane:
    """Three tasks in a row: close and score batches, publish them in order, settle them once acknowledged.

    Order: batches are published in the order in which they were closed, whatever engine answered first. A slot of the
    session is taken before a batch is closed, so the batch goes on filling while the device is busy.
    """

    def __init__(
        self,
        name: str,
        *,
        depth: int,
        batcher: Batcher,
        dispatcher: Dispatcher,
        desk: DeliveryDesk,
        publishing: ServiceTime,
        bounds: LaneBounds,
        clock: Clock,
        settled: Callable[[], None],
    ) -> None:
        """`settled` is called after each settled batch: the consumer's sign of progress and of room."""
        self.name = name
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._desk = desk
        self._publishing = publishing
        self._bounds = bounds
        self._clock = clock
        self._settled = settled
        self._slots = asyncio.Semaphore(depth)
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self._scoring = 0
        self._in_work = 0
        self._held_records = 0
        self._held_bytes = 0
        self._scored: asyncio.Queue[asyncio.Task[list[Outcome]]] = asyncio.Queue(depth + 1)
        self._published: asyncio.Queue[tuple[list[Outcome], list[Delivery], float]] = asyncio.Queue(
            UNACKNOWLEDGED_BATCHES
        )

    @property
    def has_room(self) -> bool:
        return self._held_records < self._bounds.rows and self._held_bytes < self._bounds.nbytes

    @property
    def held(self) -> tuple[int, int]:
        """Records and bytes between taking in and acknowledgement."""
        return self._held_records, self._held_bytes

    def offer(self, chunk: Chunk) -> None:
        """Take a chunk in. Never blocks and never refuses; the caller asks `has_room` before it polls."""
        self._batcher.offer(chunk)
        self._held_records += len(chunk.records)
        self._held_bytes += chunk.nbytes
        self._empty.clear()
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. Raises what cannot be handled: `PublishFailed`, or a bug."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._score_batches(tasks), name=f"{self.name}-score")
            tasks.create_task(self._publish_batches(), name=f"{self.name}-publish")
            tasks.create_task(self._settle_batches(), name=f"{self.name}-settle")

    async def drain(self) -> None:
        """Close batches without waiting for more, until everything taken in is settled. The caller bounds the wait."""
        self._draining = True
        self._wake.set()
        try:
            await self._empty.wait()
        finally:
            self._draining = False

    async def finish(self) -> None:
        """Close no more batches: forget what waits, until what is in work is settled. The caller bounds the wait."""
        self._batcher.drop()
        if not self._in_work:
            self._empty.set()
        await self._empty.wait()

    def drop(self) -> int:
        """Forget what waits; what is in work is fenced by its chunks and ends unpublished. Returns the rows dropped."""
        dropped = self._batcher.drop()
        self._held_records = self._held_bytes = 0
        if not self._in_work:
            self._empty.set()
        return dropped

    async def _score_batches(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._slots.acquire()
            batch = self._batcher.take(await self._until_closed())
            self._in_work += 1
            self._scoring += 1
            await self._scored.put(tasks.create_task(self._score(batch)))

    async def _until_closed(self) -> ClosedBy:
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            closed_by = self._batcher.closes(now, idle=self._scoring == 0, draining=self._draining)
            if closed_by is not None:
                return closed_by
            due_in = self._batcher.due_at - now
            try:
                async with asyncio.timeout(due_in if due_in != float("inf") else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _score(self, batch: Batch) -> list[Outcome]:
        try:
            return await self._dispatcher.score(batch)
        finally:
            self._scoring -= 1
            self._slots.release()
            self._wake.set()

    async def _publish_batches(self) -> None:
        while True:
            outcomes = await (await self._scored.get())
            started = self._clock.monotonic()
            deliveries = await self._desk.publish(outcomes)
            await self._published.put((outcomes, deliveries, started))

    async def _settle_batches(self) -> None:
        while True:
            outcomes, deliveries, started = await self._published.get()
            for delivery in deliveries:
                await delivery.acknowledged()
            now = self._clock.monotonic()
            rows = sum(len(outcome.batch) for outcome in outcomes)
            self._publishing.observe(max(rows, 1), now - started)
            for outcome in outcomes:
                for segment in outcome.batch.segments:
                    chunk = segment.chunk
                    if chunk.fenced():
                        continue
                    segment.settle()
                    if chunk.entry.unsettled == 0:
                        self._held_records -= len(chunk.records)
                        self._held_bytes -= chunk.nbytes
            self._desk.acknowledged(outcomes, now - started)
            self._in_work -= 1
            if not self._in_work and not self._batcher.waiting:
                self._empty.set()
            self._settled()
