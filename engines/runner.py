"""A thread around a session: submit here, be called back there. No asyncio; the worker hops to its loop in `done`."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from engines.base import Features, Scores, Session
from engines.errors import RunError

Done = Callable[[Scores | None, BaseException | None], None]
"""Called exactly once per accepted batch, with the scores or with the error, on the thread that serves the session (or,
for what `retire` gives up, on the caller's). It must not block and should not raise."""

log = logging.getLogger("scorelane.engines.runner")


class Serving(Protocol):
    """Whatever runs a session's batches for a caller that must not block: a `Runner` or a lane of a hub."""

    depth: int

    def submit(self, features: Features, done: Done) -> None: ...

    def retire(self) -> None: ...

    def close(self, timeout: float) -> bool: ...


def serve(session: Session, *, name: str) -> Serving:
    """A thread for a session: one that it shares with others (its method `serve`), or a runner of its own."""
    shared: Callable[[str], Serving] | None = getattr(session, "serve", None)
    return Runner(session, name=name) if shared is None else shared(name)


class Runner:
    """Runs the batches of one session in order on a thread of its own. It owns the session and closes it there."""

    def __init__(self, session: Session, *, name: str) -> None:
        self.name = name
        self.depth = session.depth
        self._session = session
        self._lock = threading.Lock()
        self._pending: dict[int, Done] = {}
        self._next_id = 0
        self._open = True
        self._retired = False
        self._queue: SimpleQueue[tuple[int, Features] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, features: Features, done: Done) -> None:
        """Queue a batch and return at once. `features` must stay unchanged until `done`.

        Raises `RuntimeError` when the caller broke the rules: `depth` batches are outstanding, or the runner is closed
        or retired. Everything the engine does wrong arrives in `done`.
        """
        with self._lock:
            if not self._open:
                raise RuntimeError(f"runner {self.name}: submit after close or retire")
            if len(self._pending) >= self.depth:
                raise RuntimeError(f"runner {self.name}: {self.depth} batches are outstanding; wait for a `done` first")
            batch, self._next_id = self._next_id, self._next_id + 1
            self._pending[batch] = done
            self._queue.put((batch, features))

    def retire(self) -> None:
        """Leave a hung session behind: outstanding batches end with `RunError` now, nothing is waited for.

        The thread and the session's buffers live on, since the session may still write to them; if the hang ever ends
        its late results are dropped and the session is closed by its own thread. Idempotent.
        """
        with self._lock:
            self._open = False
            self._retired = True
            waiting = list(self._pending)
        for batch in waiting:
            self._settle(batch, None, RunError(f"runner {self.name}: the session was retired before the batch ended"))
        self._queue.put(None)

    def close(self, timeout: float) -> bool:
        """Finish what was submitted, end the thread, close the session. At most `timeout` seconds; then `retire`.

        Returns whether everything ended in time. Idempotent. Not to be called from a `done`.
        """
        with self._lock:
            self._open = False
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.retire()
            return False
        return True

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            if not self._retired:
                self._run(*item)
            del item  # an idle runner must not keep the last batch's arrays alive
        try:
            self._session.close()
        except Exception:
            log.exception("runner %s: its session did not close", self.name)

    def _run(self, batch: int, features: Features) -> None:
        try:
            self._session.submit(features)
            scores = self._session.collect()
        except BaseException as error:
            self._settle(batch, None, error)
        else:
            self._settle(batch, scores, None)

    def _settle(self, batch: int, scores: Scores | None, error: BaseException | None) -> None:
        with self._lock:
            done = self._pending.pop(batch, None)
        if done is None:  # retire has answered for this batch
            return
        try:
            done(scores, error)
        except Exception:  # a callback's mistake must not end the thread that the other batches need
            log.exception("runner %s: a done callback raised", self.name)
