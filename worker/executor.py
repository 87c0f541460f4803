"""A session on its own thread, for asyncio callers."""

import asyncio

from engines.base import Features, Scores, Session
from engines.runner import serve
from worker.outcome import Absent


class Executor:
    """Runs batches of one session; at most `depth` are in work, further callers wait their turn in order.

    One thread hop each way per batch, never per event.
    """

    inline = False

    def __init__(self, session: Session, *, name: str) -> None:
        self.depth = session.depth
        self._runner = serve(session, name=name)
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(session.depth)
        self._name = name
        self._open = True

    async def run(self, features: Features) -> Scores:
        """Scores of one batch. Raises what the session raises, `Absent` once it is retired or closed.

        A caller that stops waiting (cancelled, timed out) leaves the batch in work: its slot stays taken until the
        session is done with it.
        """
        await self._slots.acquire()
        if not self._open:  # while this caller waited for its turn
            self._slots.release()
            raise self._absent()
        future: asyncio.Future[Scores] = self._loop.create_future()

        def settle(scores: Scores | None, error: BaseException | None) -> None:
            self._slots.release()
            if future.cancelled():
                return
            if scores is None and not self._open:
                future.set_exception(self._absent())
            elif scores is None:
                future.set_exception(error or AssertionError("neither scores nor error"))
            else:
                future.set_result(scores)

        def done(scores: Scores | None, error: BaseException | None) -> None:
            # The loop may be closed already when a hang ends after the worker's own end.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, scores, error)

        try:
            self._runner.submit(features, done)
        except BaseException:
            self._slots.release()
            raise
        return await future

    def retire(self) -> None:
        """Leave a hung session behind; its waiting callers get `Absent`, also those whose turn never came."""
        self._open = False
        self._runner.retire()

    async def close(self, timeout_s: float) -> bool:
        """Finish, close the session, end the thread. False when it had to be left behind."""
        self._open = False
        return await asyncio.to_thread(self._runner.close, timeout_s)

    def _absent(self) -> Absent:
        return Absent(f"{self._name}: the session was retired before it had scored the batch")
