"""A lane: its waiting rows, its session, and the way from a batch to settled offsets."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from worker.batch import Batch, Chunk
from worker.batcher import Batcher
from worker.clock import Clock
from worker.delivery import DeliveryDesk, Sent
from worker.dispatcher import Dispatcher, Started
from worker.outcome import Outcome
from worker.service_time import ServiceTime

log = logging.getLogger("scorelane.lane")

UNACKNOWLEDGED_BATCHES = 16
"""Batches of one lane between closing and acknowledgement."""


class Slots(Protocol):
    """How many batches the primary engine's session takes at once."""

    @property
    def depth(self) -> int: ...


class Scored(NamedTuple):
    """A batch in work, or a part of one: its outcomes to be, and the earliest deadline that is not past."""

    task: asyncio.Task[list[Outcome]]
    deadline: float


class Published(NamedTuple):
    """Batches whose scores are on their way to the brokers."""

    batches: int
    sent: Sent
    started: float


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """Above either bound the lane's partitions are not polled. Counted from taking in to acknowledgement."""

    rows: int
    nbytes: int


class Lane:
    """Tasks in a row: close and score batches, publish them, settle them once acknowledged.

    A slot of the session is taken before a batch is closed, so the batch goes on filling while the device is busy.
    Batches are published in the order in which they were closed, whatever engine answered first, except that one with
    an earlier deadline does not wait for one with a later.
    """

    def __init__(
        self,
        name: str,
        *,
        station: Slots,
        batcher: Batcher,
        dispatcher: Dispatcher,
        desk: DeliveryDesk,
        publishing: ServiceTime,
        bounds: LaneBounds,
        clock: Clock,
        settled: Callable[[], None],
    ) -> None:
        """`station` is the primary engine's. `settled` is called after each settled batch: the consumer's sign of
        progress and of room."""
        self.name = name
        self._station = station
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._desk = desk
        self._publishing = publishing
        self._bounds = bounds
        self._clock = clock
        self._settled = settled
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self._scoring = 0
        self._in_work = 0
        self._held_records = 0
        self._held_bytes = 0
        self._shed: deque[Batch] = deque()
        self._room = asyncio.Semaphore(UNACKNOWLEDGED_BATCHES)
        self._unpublished: list[Scored] = []
        self._answered = asyncio.Event()
        self._published: asyncio.Queue[Published] = asyncio.Queue()
        self._sent_at: deque[float] = deque()
        self._acknowledged_at = 0.0

    @property
    def has_room(self) -> bool:
        return self._held_records < self._bounds.rows and self._held_bytes < self._bounds.nbytes

    @property
    def held(self) -> tuple[int, int]:
        """Records and bytes between taking in and acknowledgement."""
        return self._held_records, self._held_bytes

    @property
    def queue_age(self) -> float:
        """Seconds that the oldest row has waited for its batch."""
        return max(self._clock.monotonic() - self._batcher.oldest, 0.0)

    @property
    def unacknowledged_s(self) -> float:
        """Seconds that something was sent and the brokers have acknowledged nothing; 0 while nothing waits for them.
        Brokers that are slow and go on answering keep it short, however long the queue."""
        if not self._sent_at:
            return 0.0
        return max(self._clock.monotonic() - max(self._sent_at[0], self._acknowledged_at), 0.0)

    def offer(self, chunk: Chunk, ranks: int | NDArray[np.intp] = 0) -> None:
        """Take a chunk in, row i into class `ranks[i]`. Never blocks; the caller asks `has_room` before it polls."""
        self._shed += self._batcher.offer(chunk, ranks, self._clock.monotonic())
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
        self._forget()
        await self._empty.wait()

    def drop(self) -> None:
        """Forget what waits; what is in work is fenced by its chunks and ends unpublished."""
        self._forget()
        self._held_records = self._held_bytes = 0

    def _forget(self) -> None:
        self._batcher.drop()
        self._shed.clear()
        if not self._in_work:
            self._empty.set()

    async def _score_batches(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._room.acquire()
            batch = await self._next()
            parts = self._dispatcher.start(batch, tasks)
            self._in_work += len(parts)
            if batch.shed is None:
                self._scoring += 1
            left = set(parts)
            for number, part in enumerate(parts):
                if number:
                    await self._room.acquire()
                part.answer.add_done_callback(partial(self._on_answer, part, left))
                deadlines = part.batch.deadlines()
                in_time = deadlines[deadlines > self._clock.monotonic()]
                self._unpublished.append(Scored(part.answer, float(in_time.min(initial=np.inf))))

    def _on_answer(self, part: Started, left: set[Started], answer: object) -> None:
        left.discard(part)
        if not left and part.batch.shed is None:
            self._scoring -= 1
        self._wake.set()
        self._answered.set()

    async def _next(self) -> Batch:
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            self._shed += self._batcher.expire(now)
            if self._shed:
                return self._shed.popleft()
            due_in = self._batcher.due_at - now if self._batcher.waiting else None
            if self._scoring < self._station.depth:
                closed_by = self._batcher.closes(now, idle=self._scoring == 0, draining=self._draining)
                if closed_by is not None:
                    return self._batcher.take(closed_by, now)
            elif not self._dispatcher.has_fallback:
                due_in = None
            elif due_in is not None and due_in <= 0.0:
                return self._busy(now)
            try:
                async with asyncio.timeout(due_in):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _busy(self, now: float) -> Batch:
        """What is due while the session is taken: it would be late by the time that a slot is free."""
        batch = self._batcher.take("busy", now)
        batch.shed = "light"
        return batch

    async def _publish_batches(self) -> None:
        while True:
            self._answered.clear()
            answered = []
            while (scored := self._publishable()) is not None:
                answered.append(scored)
            if not answered:
                await self._answered.wait()
                continue
            started = self._clock.monotonic()
            self._sent_at.append(started)
            # All that is answered goes in one message set a partition: the client has one on its way at a time.
            outcomes = [outcome for scored in answered for outcome in await scored.task]
            self._published.put_nowait(Published(len(answered), await self._desk.publish(outcomes), started))

    def _publishable(self) -> Scored | None:
        """The oldest answered batch that is not behind an unanswered one with an earlier or equal deadline."""
        blocking = np.inf
        for position, scored in enumerate(self._unpublished):
            if scored.deadline < blocking or not position:
                if scored.task.done():
                    return self._unpublished.pop(position)
                blocking = min(blocking, scored.deadline)
        return None

    async def _settle_batches(self) -> None:
        while True:
            batches, (outcomes, deliveries), started = await self._published.get()
            for delivery in deliveries:
                await delivery.acknowledged()
            now = self._acknowledged_at = self._clock.monotonic()
            self._sent_at.popleft()
            for outcome in outcomes:
                for segment in outcome.batch.segments:
                    chunk = segment.chunk
                    if chunk.fenced():
                        continue
                    segment.settle()
                    if chunk.entry.unsettled == 0:
                        self._held_records -= len(chunk.records)
                        self._held_bytes -= chunk.nbytes
            if deliveries:
                self._publishing.observe(max(sum(len(outcome.batch) for outcome in outcomes), 1), now - started)
                self._desk.acknowledged(outcomes, now - started)
            self._in_work -= batches
            for _ in range(batches):
                self._room.release()
            if not self._in_work and not self._batcher.waiting and not self._shed:
                self._empty.set()
            self._settled()
