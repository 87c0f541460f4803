"""An engine's session in service: on its own thread, replaced when it hangs."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from engines.base import Engine, Features, Scores, Session, run
from engines.errors import EngineError, RunError
from worker.executor import Executor
from worker.service_time import ServiceTime

log = logging.getLogger("scorelane.station")

MOST_HUNG: Final = 3
"""Sessions of one station that may be left behind; each holds a thread and buffers until the process ends."""


class Inline:
    """A session on the event loop's own thread, for engines whose batch costs less than the hop to another."""

    depth = 1

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

    After a hang the session is left behind and a new one opened beside it; meanwhile, and once `MOST_HUNG` were left
    behind, `run` raises at once and the next engine of the chain takes the batch.
    """

    def __init__(self, engine: Engine, executor: Executor | Inline, name: str) -> None:
        self.engine_name = engine.name
        self.version = engine.version
        self.depth = executor.depth
        self.service_time = ServiceTime()
        self._engine = engine
        self._name = name
        self._executor: Executor | Inline | None = executor
        self._opening: asyncio.Task[None] | None = None
        self._hung = 0

    @classmethod
    async def open(cls, engine: Engine, *, name: str) -> Station:
        """Open and warm a session. Raises `LoadError`, `OutOfMemory`."""
        return cls(engine, await _open(engine, name), name)

    async def run(self, features: Features) -> Scores:
        """Scores of a batch. Raises what the session raises, `RunError` while there is no session."""
        if self._executor is None:
            raise RunError(f"{self._name}: no session: {self._hung} were left behind hung")
        return await self._executor.run(features)

    async def replace(self) -> None:
        """Leave the session behind and open another one in the background. Batches that wait for it fail at once."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        executor.retire()
        self._hung += 1
        if self._hung >= MOST_HUNG:
            log.error("%s: %d sessions hung; the engine is left alone until a restart", self._name, self._hung)
        else:
            self._opening = asyncio.create_task(self._reopen(), name=f"{self._name}-reopen")

    async def close(self, timeout_s: float) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        executor, self._executor = self._executor, None
        if executor is not None and not await executor.close(timeout_s):
            log.warning("%s: the session did not end within %.1f s and is left behind", self._name, timeout_s)

    async def _reopen(self) -> None:
        try:
            self._executor = await _open(self._engine, self._name)
        except EngineError as error:
            log.error("%s: no new session after a hang: %s", self._name, error)
        else:
            log.info("%s: a new session took over", self._name)


async def _open(engine: Engine, name: str) -> Executor | Inline:
    session = await asyncio.to_thread(engine.open_session)
    return Inline(session) if engine.inline else Executor(session, name=name)
