"""When a batch closes and what is in it. Pure: time is an argument."""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.arrivals import Arrivals, batch_rows
from worker.batch import Batch, Chunk, ClosedBy, Segment
from worker.classes import Classes, ClassPolicy, Shed, ShedPolicy
from worker.service_time import REFRESH_S, ServiceTime

UNBOUNDED: Final = 1 << 62
"""With one class nothing is shed: the lane is not polled when it is full."""


class GiveUp(NamedTuple):
    """What becomes of rows that nobody can score in time."""

    policy: ShedPolicy
    quickest: ServiceTime
    """Of the engine that answers soonest."""


class Batcher:
    """One lane's waiting rows: earliest deadline first inside a class, weighted fair share between classes.

    A batch closes when it is full; when it has enough rows to keep up with the arrivals (`worker.arrivals`) and need
    not wait for its deadline; when the earliest deadline minus the predicted time to score and publish it has come; at
    once while the device idles (whoever calls `take` then has nothing more to wait for); and when draining.
    "busy" is for the caller to say: the batch is due and goes to another engine.
    """

    def __init__(
        self,
        max_batch: int,
        classes: Sequence[ClassPolicy],
        scoring: ServiceTime,
        publishing: ServiceTime,
        give_up: GiveUp | None = None,
        *,
        max_rows: int = UNBOUNDED,
    ) -> None:
        """`give_up` None: rows are scored however late they are. `max_rows` bounds the rows that wait, of all classes
        together; above, the lowest class is shed."""
        self.max_batch = max_batch
        self._policies = classes
        self._max_rows = max_rows
        self._scoring = scoring
        self._publishing = publishing
        self._give_up = give_up
        self._taken_at = -inf
        self._arrivals: Arrivals | None = None
        self._classes: Classes[Chunk] = Classes(classes, max_rows=max_rows)
        self._bare: list[Chunk] = []  # chunks of undecodable records only

    @property
    def rows(self) -> int:
        """Rows waiting."""
        return self._classes.rows

    @property
    def waiting(self) -> bool:
        """Whether any record waits, scorable or not."""
        return bool(self._bare) or self._classes.rows > 0

    @property
    def oldest(self) -> float:
        """When the longest waiting row was offered, infinity when none waits."""
        return self._classes.oldest

    def offer(self, chunk: Chunk, ranks: int | NDArray[np.intp], now: float) -> list[Batch]:
        """Take a chunk in, row i into class `ranks[i]` (or all into one). Returns what is shed for it."""
        rows = len(chunk.rows)
        if not rows:
            self._bare.append(chunk)
            return []
        if self._arrivals is None:  # the first rows say nothing of a rate
            self._arrivals = Arrivals(now)
        else:
            self._arrivals.observe(rows, now)
        return _batches(self._classes.offer(chunk, chunk.deadlines, ranks, chunk.nbytes / rows, now))

    def expire(self, now: float) -> list[Batch]:
        """What has waited for its class's timeout, or cannot be scored in time, and is shed. To be called before
        `closes`."""
        shed = _batches(self._classes.expire(now))
        tested = now - self._taken_at < REFRESH_S
        if self.rows and tested and self._give_up is not None and not self._give_up.quickest.doubted:
            rows = min(self.rows, self.max_batch)
            picks = self._classes.drop_due(now + self._give_up.quickest.predict(rows) + self._publishing.predict(rows))
            if picks:
                segments = [Segment(pick.source, *span) for pick in picks for span in pick.ranges()]
                shed.append(Batch(segments, "shed", self._give_up.policy, "late"))
        return shed

    @property
    def due_at(self) -> float:
        """Monotonic second at which the next batch must close; infinity when nothing waits."""
        rows = min(self.rows, self.max_batch)
        if not rows:
            return -float("inf") if self._bare else float("inf")
        return self._classes.earliest - self._scoring.predict(rows) - self._publishing.predict(rows)

    def closes(self, now: float, *, idle: bool, draining: bool = False) -> ClosedBy | None:
        """Why the next batch is to be taken now, None while it should go on filling."""
        if not self.waiting:
            return None
        if self.rows >= self.max_batch:
            return "full"
        if draining:
            return "drain"
        if idle or not self.rows:  # undecodable records need no device
            return "idle"
        if now >= self.due_at:
            return "due"
        return "enough" if self.rows >= self._enough(now) else None

    def _enough(self, now: float) -> int:
        """Rows with which batches keep up with the arrivals, as far as the deadlines leave time for them."""
        if self._arrivals is None or not self._scoring.known:
            return self.max_batch
        left = self._classes.earliest - now - self._publishing.predict(self.rows)
        return batch_rows(self._scoring, self._arrivals.rate(now), left, self.rows, self.max_batch)

    def take(self, closed_by: ClosedBy, now: float) -> Batch:
        """The next batch, at most `max_batch` rows. Raises IndexError when nothing waits."""
        if not self.waiting:
            raise IndexError("take from an empty batcher")
        self._taken_at = now
        segments = [Segment(chunk, 0, 0) for chunk in self._bare]
        self._bare.clear()
        for pick in self._classes.take(self.max_batch, now):
            segments += [Segment(pick.source, start, stop) for start, stop in pick.ranges()]
        return Batch(segments, closed_by)

    def drop(self) -> int:
        """Forget everything that waits (its partitions are gone). Returns the rows dropped."""
        dropped = self.rows
        self._classes = Classes(self._policies, max_rows=self._max_rows)
        self._bare.clear()
        return dropped


def _batches(shed: list[Shed[Chunk]]) -> list[Batch]:
    return [
        Batch([Segment(s.pick.source, start, stop) for start, stop in s.pick.ranges()], "shed", s.policy, s.why)
        for s in shed
    ]
