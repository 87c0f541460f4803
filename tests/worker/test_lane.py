import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np

from engines.base import Features, Scores
from tests.worker.chunks import Maker, ManualClock
from worker.batcher import Batcher
from worker.clock import Clock, SystemClock
from worker.config_quality import ONE_CLASS
from worker.delivery import Sent
from worker.dispatcher import Dispatcher
from worker.lane import Lane, LaneBounds
from worker.outcome import Outcome, Tier
from worker.route import RoutePolicy, Router
from worker.service_time import ServiceTime
from worker.troubles import Troubles


class Gate:
    """An engine whose batches wait until they are let through, in any order."""

    warm, inline = True, False

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth
        self.waiting: list[tuple[list[int], asyncio.Event]] = []
        self.came = asyncio.Condition()

    async def run(self, features: Features) -> Scores:
        xs = features["x"][:, 0].astype(int).tolist()
        through = asyncio.Event()
        async with self.came:
            self.waiting.append((xs, through))
            self.came.notify_all()
        await through.wait()
        return np.array(xs, dtype=np.float32)

    async def hung(self) -> None:
        raise AssertionError("nothing hangs here")

    async def until(self, batches: int) -> None:
        async with self.came, asyncio.timeout(10):
            await self.came.wait_for(lambda: len(self.waiting) >= batches)


class Desk:
    """Keeps what is published; acknowledges when told."""

    def __init__(self) -> None:
        self.published: list[list[int]] = []
        self.acknowledge = asyncio.Event()
        self.acknowledge.set()
        self.came = asyncio.Event()

    async def publish(self, outcomes: list[Outcome]) -> Sent:
        sent = [outcome for outcome in (outcome.owned() for outcome in outcomes) if outcome.batch.segments]
        self.published += [outcome.batch.features()["x"][:, 0].astype(int).tolist() for outcome in sent]
        self.came.set()
        return Sent(sent, [self] if sent else [])

    async def acknowledged(self, *args: object) -> None:
        await self.acknowledge.wait()


class CountingDesk(Desk):
    def acknowledged(self, *args: object) -> object:  # type: ignore[override]
        """The desk's own count (two arguments) is synchronous, a delivery's wait (none) is not."""
        return None if args else self.acknowledge.wait()


@asynccontextmanager
async def lane(
    gate: Gate,
    desk: Desk,
    *,
    light: Gate | None = None,
    max_batch: int = 2,
    rows: int = 100,
    settled: Callable[[], None] = lambda: None,
    clock: Clock | None = None,
    publishing: ServiceTime | None = None,
) -> AsyncIterator[Lane]:
    clock = clock or SystemClock()
    made = Lane(
        "t-0",
        station=gate,
        batcher=Batcher(max_batch, (ONE_CLASS,), ServiceTime(), ServiceTime()),
        dispatcher=Dispatcher(
            [
                Tier("gate", "m", "1", gate, ServiceTime(prior=(100.0, 0.0)), gate.hung),
                *([Tier("light", "m", "1", light, ServiceTime(), light.hung)] if light is not None else []),
            ],
            Router(RoutePolicy(above_s={"gate": -np.inf})),
            clock,
            publishing=ServiceTime(),
            troubles=Troubles("t"),
        ),
        desk=desk,  # type: ignore[arg-type]
        publishing=publishing or ServiceTime(),
        bounds=LaneBounds(rows=rows, nbytes=1 << 30),
        clock=clock,
        settled=settled,
    )
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


FAR = 1e12


async def test_a_slot_is_taken_before_a_batch_closes_so_it_fills_while_the_device_is_busy() -> None:
    gate, desk, maker = Gate(), CountingDesk(), Maker()
    async with lane(gate, desk, max_batch=4) as made:
        made.offer(maker.chunk([FAR]))
        await gate.until(1)
        for _ in range(3):
            made.offer(maker.chunk([FAR]))
        gate.waiting[0][1].set()
        await gate.until(2)
        assert [xs for xs, _ in gate.waiting] == [[0], [1, 2, 3]]


async def test_what_comes_due_while_the_session_is_taken_goes_to_the_fallback() -> None:
    gate, light, desk, maker = Gate(), Gate(), CountingDesk(), Maker()
    async with lane(gate, desk, light=light) as made:
        made.offer(maker.chunk([FAR]))
        await gate.until(1)
        made.offer(maker.chunk([FAR, FAR]))
        made.offer(maker.chunk([SystemClock().monotonic() + 0.001]))
        await light.until(1)
        assert sorted(light.waiting[0][0]) == [1, 3], "the urgent row, and one that fills the batch"
        light.waiting[0][1].set()
        for batch in range(2):
            await gate.until(batch + 1)
            gate.waiting[batch][1].set()
        async with asyncio.timeout(10):
            await made.drain()
        assert maker.ledger.next_offset == 4


async def test_batches_are_published_in_order_whatever_answers_first() -> None:
    gate, desk, maker = Gate(depth=2), CountingDesk(), Maker()
    async with lane(gate, desk) as made:
        made.offer(maker.chunk([FAR] * 4))
        await gate.until(2)
        gate.waiting[1][1].set()
        gate.waiting[0][1].set()
        async with asyncio.timeout(10):
            await made.drain()
        assert desk.published == [[0, 1], [2, 3]]


async def test_nothing_is_settled_before_it_is_acknowledged_and_room_counts_it_until_then() -> None:
    gate, desk, maker = Gate(), CountingDesk(), Maker()
    desk.acknowledge.clear()
    settled = asyncio.Event()
    async with lane(gate, desk, rows=2, settled=settled.set) as made:
        made.offer(maker.chunk([FAR, FAR]))
        await gate.until(1)
        gate.waiting[0][1].set()
        await desk.came.wait()
        assert maker.ledger.next_offset == 0
        assert not made.has_room
        desk.acknowledge.set()
        await settled.wait()
        assert maker.ledger.next_offset == 2
        assert made.has_room
        assert made.held == (0, 0)


class Slow(CountingDesk):
    """Acknowledges one publication after the other, each when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Semaphore(0)

    def acknowledged(self, *args: object) -> object:
        return None if args else self.let.acquire()


async def test_only_brokers_that_acknowledge_nothing_are_silent() -> None:
    """Two batches are sent at 10 and 12, acknowledged at 14 and 17: there is never a silence of more than 4 s."""
    gate, desk, maker, clock, settled = Gate(), Slow(), Maker(), ManualClock(10.0), asyncio.Semaphore(0)
    async with lane(gate, desk, max_batch=1, clock=clock, settled=settled.release) as made, asyncio.timeout(10):
        clock.now = 9.0
        assert made.unacknowledged_s == 0.0
        for batch, now in enumerate((10.0, 12.0)):
            made.offer(maker.chunk([FAR]))
            await gate.until(batch + 1)
            clock.now = now
            desk.came.clear()
            gate.waiting[batch][1].set()
            await desk.came.wait()
        clock.now = 14.0
        assert made.unacknowledged_s == 4.0, "since the first was sent"
        desk.let.release()
        await settled.acquire()
        assert made.unacknowledged_s == 0.0
        clock.now = 17.0
        assert made.unacknowledged_s == 3.0, "since the last acknowledgement"
        desk.let.release()
        await settled.acquire()
        clock.now = 30.0
        assert made.unacknowledged_s == 0.0, "nothing waits"


async def test_drain_waits_for_everything_taken_in() -> None:
    gate, desk, maker = Gate(), CountingDesk(), Maker()
    async with lane(gate, desk) as made:
        made.offer(maker.chunk([FAR] * 3, bad=[1]))
        draining = asyncio.create_task(made.drain())
        for batch in range(2):
            await gate.until(batch + 1)
            assert not draining.done()
            gate.waiting[batch][1].set()
        async with asyncio.timeout(10):
            await draining
        assert maker.ledger.unsettled == 0
        assert maker.ledger.next_offset == 4


async def test_draining_an_empty_lane_returns() -> None:
    async with lane(Gate(), CountingDesk()) as made, asyncio.timeout(10):
        await made.drain()


async def test_what_is_fenced_is_neither_published_nor_settled_and_the_lane_goes_on() -> None:
    gate, desk, old, new = Gate(), CountingDesk(), Maker(), Maker(partition=1)
    async with lane(gate, desk) as made:
        made.offer(old.chunk([FAR] * 6))
        await gate.until(1)
        old.fence.up = True
        made.drop()
        gate.waiting[0][1].set()
        made.offer(new.chunk([FAR]))
        await gate.until(2)
        gate.waiting[1][1].set()
        async with asyncio.timeout(10):
            await made.drain()
        assert desk.published == [[0]]
        assert old.ledger.next_offset == 0
        assert new.ledger.unsettled == 0
        assert made.held == (0, 0)


async def test_batches_of_which_nothing_is_sent_say_nothing_of_the_brokers() -> None:
    """Publishing is known to take 5 ms; then all partitions are given up while four batches are in work."""
    publishing = ServiceTime()
    for _ in range(20):
        publishing.observe(2, 0.005)
    known, settled = publishing.predict(2), asyncio.Semaphore(0)
    gate, desk, maker = Gate(depth=4), CountingDesk(), Maker()
    async with lane(gate, desk, publishing=publishing, settled=settled.release) as made, asyncio.timeout(10):
        made.offer(maker.chunk([FAR] * 8))
        await gate.until(4)
        maker.fence.up = True
        made.drop()
        for _, through in gate.waiting:
            through.set()
            await settled.acquire()
    assert desk.published == []
    assert publishing.predict(2) == known > 0.005


async def test_a_failed_publication_ends_the_lane() -> None:
    gate, maker = Gate(), Maker()

    class Broken(CountingDesk):
        async def publish(self, outcomes: list[Outcome]) -> Sent:
            raise ConnectionError("made so")

    made_lane = lane(gate, Broken())
    async with made_lane as made:
        made.offer(maker.chunk([FAR]))
        await gate.until(1)
        (running,) = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "Lane.run"]  # type: ignore[union-attr]
        gate.waiting[0][1].set()
        await asyncio.wait({running}, timeout=10)
        assert isinstance(running.exception(), ExceptionGroup)
        assert maker.ledger.next_offset == 0


async def test_finish_leaves_what_waits_and_settles_what_is_in_work() -> None:
    gate, desk, maker = Gate(), CountingDesk(), Maker()
    async with lane(gate, desk) as made:
        made.offer(maker.chunk([FAR] * 5))
        await gate.until(1)
        finishing = asyncio.create_task(made.finish())
        gate.waiting[0][1].set()
        async with asyncio.timeout(10):
            await finishing
        assert maker.ledger.next_offset == 2
        assert desk.published == [[0, 1]]
