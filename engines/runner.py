"""Threads around a session: submit here, be called back there. No asyncio; the worker hops to its loop in `done`."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Protocol

from engines.base import Features, Scores, Session
from engines.errors import RunError

Done = Callable[[Scores | None, BaseException | None], None]
"""Called exactly once per accepted batch, with the scores or with the error, on one of the runner's threads (or, for
what `retire` gives up, on the caller's). It must not block and should not raise."""

OnThreadStart = Callable[[], AbstractContextManager[object]]
"""Entered by each of the runner's threads before its first call into the session and left after its last."""

log = logging.getLogger("scorelane.engines.runner")


class Serving(Protocol):
    """Whatever runs a session's batches for a caller that must not block: a `Runner` or a lane of a hub."""

    depth: int

    @property
    def outstanding(self) -> int: ...

    def submit(self, features: Features, done: Done) -> None: ...

    def retire(self) -> None: ...

    def close(self, timeout: float) -> bool: ...


def serve(session: Session, *, name: str) -> Serving:
    """Threads for a session: those that it shares with others (its method `serve`), or a runner of its own."""
    shared: Callable[[str], Serving] | None = getattr(session, "serve", None)
    return Runner(session, name=name) if shared is None else shared(name)


class Runner:
    """Runs the batches of one session in order, on a launcher thread and, where `depth` > 1, a waiter thread.

    The launcher submits, so that batch k + 1 is copied and launched while the waiter blocks on batch k. A session with
    `depth` 1 gets one thread for both. The runner owns the session and closes it on its own thread, because a CUDA
    session must be released where its context is current.
    """

    def __init__(self, session: Session, *, name: str, on_thread_start: OnThreadStart | None = None) -> None:
        """`on_thread_start` defaults to the session's own method `on_thread`, where it has one (CUDA does)."""
        self.name = name
        self.depth = session.depth
        self._session = session
        own: OnThreadStart = getattr(session, "on_thread", nullcontext)
        self._on_thread = on_thread_start or own
        self._lock = threading.Lock()
        self._pending: dict[int, Done] = {}
        self._next_id = 0
        self._open = True
        self._retired = False
        self._broken: BaseException | None = None
        self._to_launch: SimpleQueue[tuple[int, Features] | None] = SimpleQueue()
        self._to_wait: SimpleQueue[int | None] = SimpleQueue()
        self._waiter: threading.Thread | None = None
        if self.depth > 1:
            self._waiter = threading.Thread(target=self._wait, name=f"{name}-wait", daemon=True)
            self._waiter.start()
        self._launcher = threading.Thread(target=self._launch, name=f"{name}-launch", daemon=True)
        self._launcher.start()

    @property
    def outstanding(self) -> int:
        """Batches submitted whose `done` has not been called yet."""
        return len(self._pending)

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
            if self._broken is None:
                batch, self._next_id = self._next_id, self._next_id + 1
                self._pending[batch] = done
                self._to_launch.put((batch, features))
                return
        self._call(done, None, self._broken)

    def retire(self) -> None:
        """Leave a hung session behind: outstanding batches end with `RunError` now, nothing is waited for.

        The threads and the session's buffers live on, since the device may still write to them; if the hang ever ends
        its late results are dropped and the session is closed by its own thread. Idempotent.
        """
        with self._lock:
            self._open = False
            self._retired = True
        self._settle_all(RunError(f"runner {self.name}: the session was retired before the batch ended"))
        self._to_launch.put(None)

    def close(self, timeout: float) -> bool:
        """Finish what was submitted, end the threads, close the session. At most `timeout` seconds; then `retire`.

        Returns whether everything ended in time. Idempotent. Not to be called from a `done`.
        """
        with self._lock:
            self._open = False
        self._to_launch.put(None)
        deadline = time.monotonic() + timeout
        for thread in (self._waiter, self._launcher):
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    self.retire()
                    return False
        return True

    def _launch(self) -> None:
        try:
            with self._on_thread():
                while (item := self._to_launch.get()) is not None:
                    if not self._retired:
                        self._launch_one(*item)
                    del item  # an idle runner must not keep the last batch's arrays alive
                self._to_wait.put(None)
                if self._waiter is not None:
                    self._waiter.join()
                self._session.close()
        except BaseException as error:
            self._break(error)
            self._to_wait.put(None)

    def _launch_one(self, batch: int, features: Features) -> None:
        try:
            self._session.submit(features)
        except BaseException as error:
            self._settle(batch, None, error)
            return
        if self._waiter is None:
            self._collect(batch)
        else:
            self._to_wait.put(batch)

    def _wait(self) -> None:
        try:
            with self._on_thread():
                while (batch := self._to_wait.get()) is not None:
                    self._collect(batch)
        except BaseException as error:
            self._break(error)

    def _collect(self, batch: int) -> None:
        try:
            scores = self._session.collect()
        except BaseException as error:
            self._settle(batch, None, error)
        else:
            self._settle(batch, scores, None)

    def _settle(self, batch: int, scores: Scores | None, error: BaseException | None) -> None:
        with self._lock:
            done = self._pending.pop(batch, None)
        if done is not None:  # None: retire has answered for this batch
            self._call(done, scores, error)

    def _settle_all(self, error: BaseException) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        for done in pending.values():
            self._call(done, None, error)

    def _break(self, error: BaseException) -> None:
        """A thread ended outside a batch (its context could not be entered, the session not closed)."""
        with self._lock:
            self._broken = error
        log.error("runner %s: thread ended by %r", self.name, error, exc_info=error)
        self._settle_all(error)

    def _call(self, done: Done, scores: Scores | None, error: BaseException | None) -> None:
        try:
            done(scores, error)
        except Exception:  # a callback's mistake must not end the thread that the other batches need
            log.exception("runner %s: a done callback raised", self.name)
