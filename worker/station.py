"""An engine's session in service: on its own thread, replaced when it hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import numpy as np

from engines.base import Engine, Features, Scores, Session, run
from engines.errors import EngineError
from schemas.spec import TensorSpec
from worker.clock import Clock
from worker.executor import Executor
from worker.outcome import Absent
from worker.service_time import ServiceTime

log = logging.getLogger("scorelane.station")

MOST_HUNG: Final = 3
"""Sessions of one station that may be left behind; each holds a thread and buffers until the process ends."""

MEASURED_RUNS: Final = 3
UNMEASURED_S: Final = 5.0
"""For a session to end that failed or was given up while it was measured."""


class OpenSession(Protocol):
    """A session that takes batches from the event loop."""

    depth: int
    inline: bool

    async def run(self, features: Features) -> Scores: ...

    def retire(self) -> None:
        """Leave it behind: who waits for it gets `Absent`."""

    async def close(self, timeout_s: float) -> bool:
        """Finish and close. False when it had to be left behind."""


Opener = Callable[[Engine, str], Awaitable[OpenSession]]
"""Opens one more session of an engine, under a name. Raises `LoadError`, `OutOfMemory`."""


class Inline:
    """A session on the event loop's own thread, for engines whose batch costs less than the hop to another."""

    depth = 1
    inline = True

    def __init__(self, session: Session) -> None:
        self._session = session

    async def run(self, features: Features) -> Scores:
        return run(self._session, features)

    def retire(self) -> None:
        """Nothing runs between two calls."""

    async def close(self, timeout_s: float) -> bool:
        self._session.close()
        return True


class Station:
    """One session and what is known of its speed.

    Cold until `open` has loaded a session and measured it. After a hang the session is left behind and a new one opened
    beside it. Without a session (cold, between two, or `gone`) `run` raises at once and the next engine of the chain
    takes the batch.
    """

    def __init__(self, name: str, opener: Opener, clock: Clock) -> None:
        self.name = name
        self.service_time = ServiceTime()
        self._opener = opener
        self._clock = clock
        self._engine: Engine | None = None
        self._executor: OpenSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._hung = 0
        self.gone: str | None = None
        """Why there will be no session any more in this process: `MOST_HUNG` hung, or no other one could be opened."""

    @property
    def warm(self) -> bool:
        """Whether there is a session."""
        return self._executor is not None

    @property
    def inline(self) -> bool:
        """Whether `run` neither waits nor can hang."""
        return self._executor is not None and self._executor.inline

    @property
    def depth(self) -> int:
        """Batches that the session takes at once."""
        return self._executor.depth if self._executor is not None else 1

    @property
    def left_behind(self) -> bool:
        """Whether a session of it was left behind and may still run."""
        return self._hung > 0

    async def open(self, engine: Engine, tensors: Sequence[TensorSpec], max_batch: int) -> None:
        """Open a session, run it at three sizes and learn their times. Raises `LoadError`, `RunError`."""
        executor = await self._opener(engine, self.name)
        try:
            self.service_time.start(await self._measured(executor, tensors, max_batch))
        except BaseException:
            await self._end(executor, UNMEASURED_S)
            raise
        self._engine, self._executor = engine, executor

    async def run(self, features: Features) -> Scores:
        """Scores of a batch. Raises what the session raises, `Absent` while there is no session."""
        if self._executor is None:
            raise Absent(f"{self.name}: {self.gone or 'no session'}")
        return await self._executor.run(features)

    async def back(self) -> bool:
        """Wait for the session that is being opened, if one is. Whether there is one now."""
        if self._opening is not None:
            await asyncio.wait({self._opening})
        return self.warm

    async def replace(self) -> None:
        """Leave the session behind and open another one in the background. Batches that wait for it fail at once."""
        executor, self._executor = self._executor, None
        if executor is None or self._engine is None:
            return
        executor.retire()
        self._hung += 1
        if self._hung >= MOST_HUNG:
            self._give_up(f"{self._hung} sessions hung and were left behind")
        else:
            self._opening = asyncio.create_task(self._reopen(self._engine), name=f"{self.name}-reopen")

    async def close(self, timeout_s: float) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        executor, self._executor = self._executor, None
        if executor is not None:
            await self._end(executor, timeout_s)

    async def _end(self, executor: OpenSession, timeout_s: float) -> None:
        if not await executor.close(timeout_s):
            self._hung += 1
            log.warning("%s: the session did not end within %.1f s and is left behind", self.name, timeout_s)

    async def _measured(
        self, executor: OpenSession, tensors: Sequence[TensorSpec], max_batch: int
    ) -> list[tuple[int, float]]:
        """(rows, seconds) of runs at three sizes."""
        points = []
        for rows in sorted({1, max(1, max_batch // 4), max_batch}):
            sample = {t.name: np.zeros((rows, *t.shape), t.dtype) for t in tensors}
            await executor.run(sample)  # the first run of a size also pays for its memory
            for _ in range(MEASURED_RUNS):
                started = self._clock.monotonic()
                await executor.run(sample)
                points.append((rows, self._clock.monotonic() - started))
        return points

    def _give_up(self, why: str) -> None:
        self.gone = why
        log.error("%s: %s", self.name, why)

    async def _reopen(self, engine: Engine) -> None:
        try:
            self._executor = await self._opener(engine, self.name)
        except EngineError as error:
            self._give_up(f"no new session after a hang: {error}")
        except Exception as error:  # no thread, no memory: nobody waits for this task, who would tell of it
            self._give_up(f"no new session after a hang: {error!r}")
        else:
            log.info("%s: a new session took over", self.name)


async def open_session(engine: Engine, name: str) -> OpenSession:
    """On the event loop's own thread, or on one of its own, as the engine says."""
    session = await asyncio.to_thread(engine.open_session)
    return Inline(session) if engine.inline else Executor(session, name=name)
