"""A simulated world for batching rules: arrivals, a device with faults, a stand-in, and one clock. Deterministic.

Same seed, same outcome, to the last row. Nothing here waits: events are taken in the order of their times.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from worker.deadline import DeadlineRule

Ranges = list[tuple[int, int]]
"""Rows as half-open ranges of their numbers, which are given in the order of arrival."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the device for batches that start in [start, stop)."""

    kind: Literal["slow", "hang", "error"]
    start: float
    stop: float
    factor: float = 1.0
    """slow: times the normal time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Rows arrive in chunks; batches of n rows take `fixed_s + row_s * n`, plus up to `noise` of it."""

    seconds: float
    rate: float
    """Rows a second."""
    bursts: tuple[tuple[float, float, float], ...] = ()
    """(start, stop, times the rate)"""
    chunk_s: float = 0.001
    """Mean time between chunks."""
    poisson: bool = True
    """Chunks at random times, with random numbers of rows; else both evenly."""
    budget_s: float = 0.050
    after_s: float = 0.002
    """Time between the scores and their acknowledgement."""
    max_batch: int = 256
    fixed_s: float = 1e-3
    row_s: float = 10e-6
    noise: float = 0.1
    light_fixed_s: float = 0.2e-3
    light_row_s: float = 1.5e-6
    faults: tuple[Fault, ...] = ()
    pauses: tuple[tuple[float, float], ...] = ()
    """(start, stop): the whole process is stopped; the device is not."""
    wall_jumps: tuple[tuple[float, float], ...] = ()
    """(at, seconds): the worker's wall clock jumps; the producers' do not."""
    mix: tuple[float, ...] = (1.0,)
    """Part of the rows in each class, the highest first."""
    seed: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """A batch on an engine."""

    rows: Ranges
    size: int
    started: float
    ok: bool
    light: bool
    note: object = None
    """The rule's own."""


class Rule(Protocol):
    """A way to make batches. It is told what happens and starts jobs in the world."""

    name: str

    def arrived(self, first: int, deadlines: NDArray[np.float64], ranks: NDArray[np.intp], now: float) -> None:
        """Rows `first`, `first + 1`, ... are there, with these deadlines by the worker's clocks, in these classes."""

    def finished(self, job: Job, now: float) -> None: ...

    def step(self, now: float) -> float:
        """Do all that can be done now. Returns when to be called again though nothing happens (infinity: never)."""


@dataclass(slots=True)
class Outcome:
    """What became of each row. Seconds; infinity where a row was never answered."""

    arrived: NDArray[np.float64]
    answered: NDArray[np.float64]
    deadlines: NDArray[np.float64]
    ranks: NDArray[np.intp]
    """Class of each row."""
    light: NDArray[np.bool_]
    """Whether the stand-in answered."""
    batches: int = 0
    rows_in_batches: int = 0

    @property
    def missed(self) -> NDArray[np.bool_]:
        return self.answered > self.deadlines

    @property
    def lost(self) -> int:
        """Rows without any answer."""
        return int(np.isinf(self.answered).sum())

    def latency(self, quantile: float) -> float:
        return float(np.quantile(self.answered - self.arrived, quantile, method="higher"))


@dataclass(slots=True, eq=False)
class World:
    scenario: Scenario
    outcome: Outcome = field(init=False)
    light_free: float = 0.0
    """When the stand-in has done what it was given."""
    _first: NDArray[np.int64] = field(init=False)
    _times: NDArray[np.float64] = field(init=False)
    _events: list[tuple[float, int, Job]] = field(default_factory=list)
    _number: int = 0
    _noise: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        scenario = self.scenario
        rng = np.random.default_rng(scenario.seed)
        self._noise = np.random.default_rng(scenario.seed + 1)
        self._times = _chunk_times(scenario, rng)
        factor = np.ones(len(self._times))
        for start, stop, times in scenario.bursts:
            factor[(self._times >= start) & (self._times < stop)] = times
        mean = scenario.rate * scenario.chunk_s * factor
        counts = rng.poisson(mean) if scenario.poisson else np.diff(np.floor(np.cumsum(mean) + 1e-6), prepend=0)
        self._first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        arrived = np.repeat(self._times, np.diff(self._first))
        rows = len(arrived)
        self.outcome = Outcome(
            arrived,
            np.full(rows, inf),
            arrived + scenario.budget_s,
            rng.choice(len(scenario.mix), size=rows, p=scenario.mix),
            np.zeros(rows, dtype=np.bool_),
        )

    def start(self, rows: Ranges, now: float, *, light: bool = False, note: object = None) -> Job:
        """Run a batch. The rule is told when it is done; the rows are not answered by that (see `answer`)."""
        size = sum(stop - start for start, stop in rows)
        scenario = self.scenario
        if light:
            at = max(now, self.light_free) + scenario.light_fixed_s + scenario.light_row_s * size
            self.light_free = at
            job = Job(rows, size, now, True, True, note)
        else:
            fault = next((f for f in scenario.faults if f.start <= now < f.stop), None)
            taken = (scenario.fixed_s + scenario.row_s * size) * (1 + scenario.noise * self._noise.random())
            if fault is not None:
                taken = taken * fault.factor if fault.kind != "hang" else taken + fault.stop - now
            at = now + taken
            job = Job(rows, size, now, fault is None or fault.kind != "error", False, note)
        self.outcome.batches += 1
        self.outcome.rows_in_batches += size
        self._push(at, job)
        return job

    def answer(self, rows: Ranges, now: float, *, light: bool = False) -> None:
        """Scores of `rows` are ready now, and acknowledged `after_s` later. A row is answered once."""
        for start, stop in rows:
            if not np.isinf(self.outcome.answered[start:stop]).all():
                raise AssertionError(f"a row of {start}..{stop} was answered twice. This is a bug.")
            self.outcome.answered[start:stop] = now + self.scenario.after_s
            self.outcome.light[start:stop] = light

    def run(self, make: Callable[["World"], Rule]) -> Rule:
        """Run the scenario to its end, until nothing more happens."""
        rule = make(self)
        deadline_rule = DeadlineRule(budget_ms=self.scenario.budget_s * 1e3)
        times = [*self._times.tolist(), inf]
        wake = inf
        chunk = 0
        while True:
            done_at = self._events[0][0] if self._events else inf
            at = min(times[chunk], done_at, wake)
            if at == inf:
                return rule
            now = self._awake(at)
            if at == done_at:
                rule.finished(heappop(self._events)[2], now)
            elif at == times[chunk]:
                first, stop = self._first[chunk : chunk + 2].tolist()
                if stop > first:
                    stamps = np.full(stop - first, at * 1e3)
                    wall_ms = (now + self._jumped(now)) * 1e3
                    own = np.full(stop - first, np.nan)
                    deadlines = deadline_rule.deadlines(stamps, own, now=now, wall_ms=wall_ms)
                    rule.arrived(first, deadlines, self.outcome.ranks[first:stop], now)
                chunk += 1
            wake = max(rule.step(now), now)

    def _push(self, at: float, job: Job) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, job))

    def _awake(self, at: float) -> float:
        return next((stop for start, stop in self.scenario.pauses if start <= at < stop), at)

    def _jumped(self, now: float) -> float:
        return sum(seconds for at, seconds in self.scenario.wall_jumps if now >= at)


def _chunk_times(scenario: Scenario, rng: np.random.Generator) -> NDArray[np.float64]:
    count = round(scenario.seconds / scenario.chunk_s)
    if scenario.poisson:
        return np.sort(rng.random(rng.poisson(count)) * scenario.seconds)
    return np.arange(count, dtype=np.float64) * scenario.chunk_s


def miss_ratio(outcome: Outcome, rows: NDArray[np.bool_] | None = None) -> float:
    """Part of the rows (of those marked in `rows`) that were answered after their deadline or never."""
    missed = outcome.missed if rows is None else outcome.missed[rows]
    return float(missed.mean()) if len(missed) else 0.0


def merged(ranges: Ranges) -> Ranges:
    """The same rows with neighbouring ranges joined."""
    joined: Ranges = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return joined
