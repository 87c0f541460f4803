"""A dispatcher whose engines answer, fail and hang as a test says."""

import asyncio
from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from engines.base import Features, Scores
from engines.errors import RunError
from tests.worker.chunks import Maker, ManualClock
from worker.batch import Batch, Segment
from worker.breaker import BreakerPolicy, Transition
from worker.breakers import Breakers
from worker.classes import ShedPolicy
from worker.dispatcher import Dispatcher
from worker.outcome import Outcome, Tier
from worker.route import RoutePolicy, Router
from worker.service_time import ServiceTime
from worker.troubles import Troubles

Answer = Callable[[list[int]], list[float]]

ALWAYS = RoutePolicy(above_s={"ort": -inf})
INSTANT = (1e-9, 0.0)


class Scripted:
    """An engine that answers as told; the real ones cannot fail on demand."""

    warm = True
    inline = False

    def __init__(self, name: str, answer: Answer, prior: tuple[float, float] = INSTANT) -> None:
        self.name = name
        self.answer = answer
        self.left_behind = 0
        self.sessions = 1
        """How many it can open; hung ones are left behind."""
        self.calls: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.service_time = ServiceTime(prior=prior)

    async def run(self, features: Features) -> Scores:
        self.calls.append(features["x"][:, 0].astype(int).tolist())
        await self.go.wait()
        return np.array(self.answer(self.calls[-1]), dtype=np.float32)

    async def hung(self) -> None:
        self.left_behind += 1

    async def back(self) -> bool:
        return self.left_behind < self.sessions


class Fixture:
    """A dispatcher on a manual clock; every engine but the last has a breaker, and so have the segments'."""

    def __init__(self, *engines: Scripted, policy: RoutePolicy = ALWAYS, segments: Sequence[Scripted] = ()) -> None:
        self.clock = ManualClock()
        self.moves: list[tuple[str, Transition]] = []
        self.breakers = self._breakers()
        self.segment_breakers = self._breakers()
        chain = [self._tier(engine, self.breakers if engine is not engines[-1] else None) for engine in engines]
        self.dispatcher = Dispatcher(
            chain,
            Router(policy),
            self.clock,
            publishing=ServiceTime(prior=INSTANT),
            troubles=Troubles("t"),
            segments=[self._tier(engine, self.segment_breakers) for engine in segments],
        )

    def _breakers(self) -> Breakers:
        return Breakers(BreakerPolicy(open_s=1.0), lambda lane, move: self.moves.append((lane, move)))

    def _tier(self, engine: Scripted, breakers: Breakers | None) -> Tier:
        breaker = breakers.open_lane("lane") if breakers is not None else None
        return Tier(engine.name, "m", "7", engine, engine.service_time, engine.hung, breaker)

    async def score(self, batch: Batch) -> list[Outcome]:
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            return [outcome for started in self.dispatcher.start(batch, tasks) for outcome in await started.answer]


def half(xs: list[int]) -> list[float]:
    return [x / 2 for x in xs]


def double(xs: list[int]) -> list[float]:
    return [x * 2 for x in xs]


def fails(xs: list[int]) -> list[float]:
    raise RunError("made so")


def batch(rows: int, bad: int = 0, deadline: float = 1000.0, shed: ShedPolicy | None = None) -> Batch:
    chunk = Maker().chunk([deadline] * rows, bad=range(rows, rows + bad))
    if shed is None:
        return Batch([Segment(chunk, 0, rows)], "full")
    return Batch([Segment(chunk, 0, rows)], "shed", shed, "timeout")
