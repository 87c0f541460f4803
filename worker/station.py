"""An engine's session in service: on its own thread, replaced when it hangs."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from engines.base import Engine, Features, Scores
from engines.errors import DeviceLost, EngineError, RunError
from worker.executor import Executor
from worker.service_time import ServiceTime

log = logging.getLogger("scorelane.station")

MOST_HUNG: Final = 3
"""Sessions of one station that may be left behind; each holds a thread and buffers until the process ends."""


class Station:
    """One session and what is known of its speed.

    After a hang the session is left behind and a new one opened beside it; meanwhile, and once `MOST_HUNG` were left
    behind, `run` raises at once and the next engine of the chain takes the batch.
    """

    def __init__(self, engine: Engine, executor: Executor, name: str) -> None:
        self.engine_name = engine.name
        self.version = engine.version
        self.depth = executor.depth
        self.service_time = ServiceTime()
        self._engine = engine
        self._name = name
        self._executor: Executor | None = executor
        self._opening: asyncio.Task[None] | None = None
        self._hung = 0

    @classmethod
    async def open(cls, engine: Engine, *, name: str) -> Station:
        """Open and warm a session. Raises `LoadError`, `OutOfMemory`."""
        session = await asyncio.to_thread(engine.open_session)
        return cls(engine, Executor(session, name=name), name)

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
            session = await asyncio.to_thread(self._engine.open_session)
        except (EngineError, DeviceLost) as error:
            log.error("%s: no new session after a hang: %s", self._name, error)
        else:
            self._executor = Executor(session, name=self._name)
            log.info("%s: a new session took over", self._name)
