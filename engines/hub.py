"""Several sessions on one thread: submit to each, poll all, call back. For sessions that never block (a GPU's streams).

Threads that each wait for their own stream fight for the interpreter's lock. Measured on an H200 with eight lanes of an
MLP (256 floats a row), in million rows a second at batches of 64, 256 and 1024: launcher and waiter threads a lane 0.7,
2.2 and 7.2; one shared thread 3.0, 6.0 and 8.5; two 1.9, 5.9 and 13.7. Polling also leaves no thread behind when a
session hangs: it is never ready, and that is all.
"""

import ctypes
import logging
import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import Final, Protocol

from engines.base import Features, Scores, Session
from engines.errors import RunError
from engines.inbox import Inbox
from engines.runner import Done

NAP_S: Final = 20e-6
"""Between two looks at what is in flight while nothing new comes."""
ENDING_NAP_S: Final = 0.01
"""The same while only lanes that end are in flight, hung ones perhaps for good."""
PASSES: Final = 8
"""Looks at the oldest batch alone before the others are looked at too."""

_PR_SET_TIMERSLACK: Final = 29

log = logging.getLogger("scorelane.engines.hub")


class PolledSession(Session, Protocol):
    def ready(self) -> bool:
        """Whether `collect` returns (or raises) without waiting."""

    def on_thread(self) -> AbstractContextManager[object]:
        """For the thread that serves it."""


class Lane:
    """One session of a hub, with the interface of `engines.runner.Runner`. Made by `Hub.open`."""

    def __init__(self, hub: "Hub", session: PolledSession, name: str) -> None:
        self.name = name
        self.depth = session.depth
        self.session = session
        self.flying: deque[int] = deque()
        """Batches submitted to the session, oldest first. The hub's thread alone touches it."""
        self.retired = False
        self.ended = threading.Event()
        self._hub = hub
        self._lock = threading.Lock()
        self._waiting: dict[int, Done] = {}
        self._next_id = 0
        self._open = True

    def submit(self, features: Features, done: Done) -> None:
        """Queue a batch and return at once, as `Runner.submit`."""
        with self._lock:
            if not self._open:
                raise RuntimeError(f"lane {self.name}: submit after close or retire")
            if len(self._waiting) >= self.depth:
                raise RuntimeError(f"lane {self.name}: {self.depth} batches are outstanding; wait for a `done` first")
            batch, self._next_id = self._next_id, self._next_id + 1
            self._waiting[batch] = done
            self._hub.put(self, batch, features)

    def settle(self, batch: int, scores: Scores | None, error: BaseException | None) -> None:
        """Answer for a batch, unless `retire` has."""
        with self._lock:
            done = self._waiting.pop(batch, None)
        if done is not None:
            try:
                done(scores, error)
            except Exception:  # a callback's mistake must not end the thread that the other lanes need
                log.exception("lane %s: a done callback raised", self.name)

    def retire(self) -> None:
        """Leave a hung session behind, as `Runner.retire`; its thread closes it should the device come back."""
        with self._lock:
            self._open = False
            self.retired = True
            waiting = list(self._waiting)
        for batch in waiting:
            self.settle(batch, None, RunError(f"lane {self.name}: the session was retired before the batch ended"))
        self._hub.end(self)

    def close(self, timeout: float) -> bool:
        """Finish what was submitted and close the session on the hub's thread, as `Runner.close`."""
        with self._lock:
            self._open = False
        self._hub.end(self)
        if not self.ended.wait(timeout):
            self.retire()
            return False
        return True


class Hub:
    """A thread and the lanes on it. The thread starts with the first lane and ends with the last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes = 0
        self._lock = threading.Lock()
        self._inbox = Inbox[tuple[Lane, int, Features | None]]()
        self._inside: Lane | None = None
        self._flying: deque[Lane] = deque()
        """The lane of each batch in flight, in the order of submission. As the rest, touched by the thread alone."""
        self._passed = 0
        self._ending: set[Lane] = set()
        """Lanes to close once the device is done with their batches."""

    @property
    def stuck(self) -> bool:
        """Whether the thread is inside a call of a session that was retired: no further lane should come here."""
        inside = self._inside
        return inside is not None and inside.retired

    def open(self, session: PolledSession, name: str) -> Lane:
        """Serve one more session, which from now on belongs to the lane."""
        lane = Lane(self, session, name)
        with self._lock:
            self.lanes += 1
            if self.lanes == 1:
                threading.Thread(target=self._serve, args=(lane,), name=self.name, daemon=True).start()
        return lane

    def put(self, lane: Lane, batch: int, features: Features) -> None:
        """For `Lane.submit`."""
        self._inbox.put((lane, batch, features))

    def end(self, lane: Lane) -> None:
        """For `Lane.close` and `Lane.retire`: close the session when nothing of it is in flight any more."""
        self._inbox.put((lane, -1, None))

    def _serve(self, first: Lane) -> None:
        # By default the kernel delays a sleeping thread's wake-up by 50 us.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
        with first.session.on_thread():
            del first
            while True:
                moved = self._take(0.0)
                if self._flying:
                    moved = self._harvest() or moved
                if self._ending and self._close_ended():
                    return
                if not moved and not self._harvest_any():
                    self._take(NAP_S if self._flying else ENDING_NAP_S if self._ending else None)

    def _take(self, patience: float | None) -> bool:
        """Submit everything that waits; wait for the first up to `patience` seconds, None for ever."""
        inbox = self._inbox
        if not inbox and (patience == 0.0 or not inbox.wait(patience)):
            return False
        while inbox:
            lane, batch, features = inbox.pop()
            if features is None:
                self._ending.add(lane)
                self._flying = deque(other for other in self._flying if other is not lane)
            elif not lane.retired:
                self._submit(lane, batch, features)
            del features  # an idle hub must not keep the last batch's arrays alive
        return True

    def _submit(self, lane: Lane, batch: int, features: Features) -> None:
        self._inside = lane
        try:
            lane.session.submit(features)
        except BaseException as error:
            lane.settle(batch, None, error)
        else:
            lane.flying.append(batch)
            self._flying.append(lane)
        self._inside = None

    def _harvest(self) -> bool:
        """Collect from the front while that is ready: streams mostly finish in the order of submission."""
        flying, moved = self._flying, False
        while flying and flying[0].session.ready():
            self._collect(flying.popleft())
            moved = True
        if moved or not flying:
            self._passed = 0
            return moved
        # Something keeps the front: look at the others now and then, also while new batches keep coming.
        self._passed += 1
        return self._passed % PASSES == 0 and self._harvest_any()

    def _harvest_any(self) -> bool:
        """Collect the oldest batch of every lane that is ready."""
        moved = False
        for lane in dict.fromkeys(self._flying):
            if lane.session.ready():
                self._flying.remove(lane)
                self._collect(lane)
                moved = True
        return moved

    def _collect(self, lane: Lane) -> None:
        batch = lane.flying.popleft()
        try:
            scores = lane.session.collect()
        except BaseException as error:
            lane.settle(batch, None, error)
        else:
            lane.settle(batch, scores, None)

    def _close_ended(self) -> bool:
        """Close the sessions of ending lanes of which nothing is in flight any more. Whether that was the last lane:
        the thread ends and touches nothing more, since a lane that is opened now starts another."""
        for lane in list(self._ending):
            while lane.flying and lane.session.ready():
                self._collect(lane)
            if lane.flying:
                continue
            self._ending.remove(lane)
            if lane.ended.is_set():  # closed before, and then retired, or closed twice
                continue
            try:
                lane.session.close()
            except Exception:
                log.exception("lane %s: its session did not close", lane.name)
            with self._lock:
                self.lanes -= 1
                last = self.lanes == 0
            lane.ended.set()
            if last:
                return True
        return False


class Hubs:
    """A bounded number of hubs; a lane goes to the one with the fewest."""

    def __init__(self, name: str, threads: int) -> None:
        self._hubs = [Hub(f"{name}-{index}") for index in range(threads)]
        self._lock = threading.Lock()

    def open(self, session: PolledSession, name: str) -> Lane:
        """A lane on the least busy hub. One whose thread was lost in a hang is replaced."""
        with self._lock:
            self._hubs = [Hub(hub.name) if hub.stuck else hub for hub in self._hubs]
            return min(self._hubs, key=lambda hub: hub.lanes).open(session, name)
