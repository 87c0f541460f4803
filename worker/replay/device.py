"""Sessions that score for real and take a modelled time: so long for a batch of n rows, with scripted faults."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from engines.base import Engine, Features, Scores, Session, batch_size, run
from engines.errors import DeviceLost, EngineError, RunError
from worker.replay.clock import ReplayClock
from worker.replay.faults import PRIMARY, DeviceFaults, Fault
from worker.station import OpenSession

ASYNC_DEPTH: Final = 2
"""Batches that a session of an engine on a device takes at once: one computes, one is copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long an engine takes: `fixed_s + row_s * n`, and up to `jitter` times more at random."""

    fixed_s: float
    row_s: float
    jitter: float = 0.0
    depth: int = 1

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]], *, depth: int = 1, jitter: float = 0.0) -> "Pace":
        """The line through the smallest and the largest of (rows, seconds). Raises `ValueError` without any."""
        if not points:
            raise ValueError("no measured batch")
        (few, quick), (many, slow) = min(points), max(points)
        row_s = max(0.0, (slow - quick) / (many - few)) if many > few else 0.0
        return cls(fixed_s=max(0.0, quick - row_s * few), row_s=row_s, depth=depth, jitter=jitter)


class Devices:
    """Opens the sessions of a replay: the place of `worker.station.open_session`."""

    def __init__(
        self, paces: Mapping[str, Pace], primary: str, faults: Sequence[Fault], clock: ReplayClock, seed: int = 0
    ) -> None:
        """`paces`: kind of engine -> how long it takes; `primary` is the kind of the topic's first engine.

        Raises `ValueError` for a fault that would befall none of these engines.
        """
        for fault in faults:
            if fault.engine and fault.engine not in {PRIMARY, *paces}:
                known = f"the topic's engines are {', '.join((PRIMARY, *paces))}"
                alone = "real engines take no faults, so give their times"
                raise ValueError(f"{fault.kind}:{fault.engine}: {known if paces else alone}")
        self._paces = paces
        self._faults = {kind: DeviceFaults(faults, {kind, PRIMARY} if kind == primary else {kind}) for kind in paces}
        self._clock = clock
        self._seed = seed
        self.opened = 0
        """Sessions opened so far."""

    async def open(self, engine: Engine, name: str) -> OpenSession:
        pace = self._paces[engine.name]
        faults = self._faults[engine.name]
        if engine.inline and faults.hangs:
            raise ValueError(
                f"hang: {engine.name} is computed on the worker's own thread and cannot hang; take slow, error or pause"
            )
        self.opened += 1
        random = Random(self._seed * 1_000_003 + self.opened)
        kind = InlineSession if engine.inline else DeviceSession
        return kind(engine.open_session(), pace, faults, self._clock, random, name)


class InlineSession:
    """Computes on the event loop, which does nothing else meanwhile."""

    depth = 1
    inline = True

    def __init__(
        self, session: Session, pace: Pace, faults: DeviceFaults, clock: ReplayClock, random: Random, name: str
    ) -> None:
        self._session = session
        self._pace = pace
        self._faults = faults
        self._clock = clock
        self._random = random
        self._name = name

    async def run(self, features: Features) -> Scores:
        begin = self._clock.elapsed
        seconds = duration(self._pace, batch_size(features), self._random)
        self._clock.spend(self._faults.ends(begin, seconds) - begin)
        _refuse(self._faults, begin, self._name)
        return run(self._session, features)

    def retire(self) -> None:
        """Nothing runs between two calls."""

    async def close(self, timeout_s: float) -> bool:
        self._session.close()
        return True


class DeviceSession:
    """Takes `depth` batches and computes one at a time, as a session on its own thread does."""

    inline = False

    def __init__(
        self, session: Session, pace: Pace, faults: DeviceFaults, clock: ReplayClock, random: Random, name: str
    ) -> None:
        self.depth = pace.depth
        self._session = session
        self._pace = pace
        self._faults = faults
        self._clock = clock
        self._random = random
        self._name = name
        self._slots = asyncio.Semaphore(pace.depth)
        self._in_work: set[asyncio.Future[Scores]] = set()
        self._free_at = 0.0  # monotonic, since second 0 is not yet known while the session is measured
        self._stuck = False
        self._retired = False

    async def run(self, features: Features) -> Scores:
        await self._slots.acquire()
        if self._retired:
            self._slots.release()
            raise RunError(f"{self._name}: the session was retired before the batch began")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Scores] = loop.create_future()
        self._in_work.add(future)
        begin = self._clock.since(max(self._clock.monotonic(), self._free_at))
        seconds = duration(self._pace, batch_size(features), self._random)
        self._stuck = self._stuck or self._faults.at(begin) == "hang"
        if not self._stuck:
            self._free_at = self._clock.at(self._faults.ends(begin, seconds))
            loop.call_at(self._free_at, self._done, future, features, begin)
        return await future

    def retire(self) -> None:
        self._retired = True
        in_work, self._in_work = self._in_work, set()
        for future in in_work:
            if not future.done():
                future.set_exception(RunError(f"{self._name}: the session was retired before the batch ended"))
            self._slots.release()

    async def close(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(self.depth):  # a batch has its slot until the device is done, whoever still waits for it
                    await self._slots.acquire()
        except TimeoutError:
            self.retire()
            return False
        self._session.close()
        return True

    def _done(self, future: "asyncio.Future[Scores]", features: Features, begin: float) -> None:
        if future not in self._in_work:
            return
        self._in_work.discard(future)
        self._slots.release()
        if future.done():  # who asked has stopped waiting
            return
        try:
            _refuse(self._faults, begin, self._name)
            future.set_result(run(self._session, features))
        except EngineError as error:
            future.set_exception(error)


def duration(pace: Pace, rows: int, random: Random) -> float:
    """Seconds at full speed."""
    return (pace.fixed_s + pace.row_s * rows) * (1.0 + pace.jitter * random.random())


def _refuse(faults: DeviceFaults, begin: float, name: str) -> None:
    match faults.at(begin):
        case "error":
            raise RunError(f"{name}: scripted error")
        case "lost":
            raise DeviceLost(f"{name}: scripted loss of the device")
