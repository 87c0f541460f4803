"""Batching rules under the same arrivals: ours, a static timer and CORK, in simulated time. Deterministic.

`Ours` is made of the objects that the worker runs (`Batcher`, `ServiceTime`, `Breaker`, `Guard`); only time and engines
are simulated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from worker.batch import Batch, Chunk
from worker.batcher import Batcher, ClosedBy
from worker.breaker import Breaker, BreakerPolicy, Transition, normal_time
from worker.classes import DEFAULT_CLASSES, ClassPolicy
from worker.guard import Decision, Guard, GuardPolicy
from worker.rivals import Cork, StaticTimer
from worker.service_time import ServiceTime
from worker.world import Job, Outcome, Ranges, Rule, Scenario, World, merged

ROW_BYTES: Final = 528


@dataclass(slots=True, eq=False)
class Arrived:
    """What the batcher needs of a chunk."""

    first: int
    deadlines: NDArray[np.float64]
    rows: range
    nbytes: int


class Ours:
    """The worker's lane: deadline batches, slot first, and (with `fallback`) a stand-in guarded by a breaker."""

    def __init__(
        self,
        world: World,
        *,
        fallback: bool = True,
        policy: BreakerPolicy | None = None,
        classes: Sequence[ClassPolicy] = DEFAULT_CLASSES,
    ) -> None:
        scenario = world.scenario
        self.name = "scorelane" if fallback else "no fallback"
        self.moves: list[Transition] = []
        self._world = world
        self._fallback = fallback
        sizes = (1, scenario.max_batch)
        line = [(n, scenario.fixed_s + scenario.row_s * n) for n in sizes]
        self._light = ServiceTime.measured([(n, scenario.light_fixed_s + scenario.light_row_s * n) for n in sizes])
        self._primary = ServiceTime.measured(line)
        publishing = ServiceTime(prior=(scenario.after_s / 1.5, 0.0))
        self._batcher = Batcher(scenario.max_batch, classes, self._primary, publishing)
        self._guard = Guard(
            Breaker(normal_time(line), policy or BreakerPolicy(never_slow_s=scenario.budget_s / 5)),
            self._primary,
            self._light,
            GuardPolicy(after_s=scenario.after_s, ahead_rows=scenario.max_batch),
        )
        self._job: Job | None = None
        self._decision: Decision | None = None

    def arrived(self, first: int, deadlines: NDArray[np.float64], ranks: NDArray[np.intp], now: float) -> None:
        rows = range(len(deadlines))
        chunk = cast(Chunk, Arrived(first, deadlines, rows, ROW_BYTES * len(rows)))
        for shed in self._batcher.offer(chunk, ranks, now):
            self._shed(shed, now)

    def finished(self, job: Job, now: float) -> None:
        if job.light:
            return
        if job is not self._job or self._decision is None:
            return  # left behind; its session was retired and its result is dropped
        decision, self._job, self._decision = self._decision, None, None
        assert decision.ticket is not None
        if job.ok:
            self._guard.succeeded(decision.ticket, job.size, now - job.started, now)
        else:
            self._guard.failed(decision.ticket, now)
        if decision.answers and job.ok:
            self._world.answer(job.rows, now)
        elif decision.answers:
            self._stand_in(job.rows, now)

    def step(self, now: float) -> float:
        if self._job is not None and self._decision is not None and now >= self._decision.leave_at:
            self._leave(self._job, self._decision, now)
        for shed in self._batcher.expire(now):
            self._shed(shed, now)
        while (closed_by := self._closes(now)) is not None:
            self._score(closed_by, now)
        self.moves += self._guard.moves()
        if not self._fallback:
            return inf
        # With the slot taken, the batch that comes due is the stand-in's.
        leave_at = self._decision.leave_at if self._decision is not None else inf
        return min(leave_at, max(self._batcher.due_at, self._light_ready()) if self._batcher.rows else inf)

    def _closes(self, now: float) -> ClosedBy | None:
        free = self._job is None
        if not self._fallback:
            return self._batcher.closes(now, idle=True) if free else None
        # The stand-in gets one batch ahead; what is above that waits in its class, where the highest is served first.
        ready = now >= self._light_ready()
        if free and self._guard.usable(now) and (ready or now + self._reserve(now) <= self._batcher.due_at):
            return self._batcher.closes(now, idle=True)
        if not ready:
            return None
        if free:
            return self._batcher.closes(now, idle=self._world.light_free <= now)
        # The primary is at work and will be free again; only what it cannot answer in time goes to the stand-in.
        return "due" if self._batcher.rows and now >= self._batcher.due_at else None

    def _score(self, closed_by: ClosedBy, now: float) -> None:
        batch = self._batcher.take(closed_by, now)
        rows = _rows(batch)
        if not self._fallback:
            self._start(rows, Decision(True, 0, inf, None), now)
            return
        wait = max(0.0, self._world.light_free - now)
        deadlines = batch.deadlines()
        in_time = deadlines - now >= self._guard.needed(len(deadlines), wait)
        if in_time.any() and not in_time.all() and self._job is None:
            self._stand_in(_picked(rows, ~in_time), now)
            rows, deadlines = _picked(rows, in_time), deadlines[in_time]
            wait = max(0.0, self._world.light_free - now)
        decision = self._guard.decide(
            len(deadlines), float(deadlines.min()), now, slot_free=self._job is None, wait_s=wait
        )
        if not decision.answers:
            self._stand_in(rows, now)
        if decision.ticket is not None:
            self._start(rows, decision, now)

    def _start(self, rows: Ranges, decision: Decision, now: float) -> None:
        self._job = self._world.start(rows, now)
        self._decision = decision

    def _leave(self, job: Job, decision: Decision, now: float) -> None:
        self._job = self._decision = None
        assert decision.ticket is not None
        self._guard.failed(decision.ticket, now, left=(job.size, now - job.started))
        if decision.answers:
            self._stand_in(job.rows, now)

    def _stand_in(self, rows: Ranges, now: float) -> None:
        if not self._fallback:
            return
        self._world.start(rows, now, light=True)
        # Nothing can stop the stand-in, so its answer is known when it begins.
        self._world.answer(rows, self._world.light_free, light=True)

    def _shed(self, batch: Batch, now: float) -> None:
        """Rows shed are the stand-in's; skipped and dead-lettered ones have no answer."""
        if batch.shed == "light":
            self._stand_in(_rows(batch), now)

    def _reserve(self, now: float) -> float:
        """Seconds that the stand-in needs after the primary was left behind."""
        rows = min(self._batcher.rows, self._batcher.max_batch)
        return self._light.predict(rows) + max(0.0, self._world.light_free - now)

    def _light_ready(self) -> float:
        return self._world.light_free - self._light.predict(self._batcher.max_batch)


RULES: dict[str, Callable[[World], Rule]] = {
    "scorelane": Ours,
    "no fallback": lambda world: Ours(world, fallback=False),
    "timer 1 ms": lambda world: StaticTimer(world, 0.001),
    "timer 5 ms": lambda world: StaticTimer(world, 0.005),
    "CORK": Cork,
}


def simulate(scenario: Scenario, make: Callable[[World], Rule]) -> tuple[Rule, Outcome]:
    """The rule, for what it remembers, and what became of the rows."""
    world = World(scenario)
    rule = world.run(make)
    return rule, world.outcome


def _rows(batch: Batch) -> Ranges:
    firsts = [cast(Arrived, segment.chunk).first for segment in batch.segments]
    return merged([(first + s.start, first + s.stop) for first, s in zip(firsts, batch.segments, strict=True)])


def _picked(ranges: Ranges, wanted: NDArray[np.bool_]) -> Ranges:
    rows = np.concatenate([np.arange(start, stop) for start, stop in ranges])[wanted]
    return merged([(row, row + 1) for row in rows.tolist()])
