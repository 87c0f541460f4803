"""When a batch closes and what is in it. Pure: time is an argument."""

from collections import deque
from typing import Final, Literal

from worker.batch import Batch, Chunk, Segment
from worker.service_time import ServiceTime

ClosedBy = Literal["full", "due", "idle", "drain"]
CLOSED_BY: Final[tuple[ClosedBy, ...]] = ("full", "due", "idle", "drain")


class Batcher:
    """One lane's waiting rows, first in first out.

    A batch closes when it is full; when the earliest deadline minus the predicted time to score and publish it has
    come; at once while the device idles (whoever calls `take` then has nothing more to wait for); and when draining.
    """

    def __init__(self, max_batch: int, scoring: ServiceTime, publishing: ServiceTime) -> None:
        self.max_batch = max_batch
        self.rows = 0
        """Rows waiting."""
        self._scoring = scoring
        self._publishing = publishing
        self._chunks: deque[Chunk] = deque()
        self._taken = 0  # rows of the first chunk that are already in a batch
        self._earliest: deque[float] = deque()  # per chunk, of its rows not yet taken

    @property
    def waiting(self) -> bool:
        """Whether any record waits, scorable or not."""
        return bool(self._chunks)

    def offer(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._earliest.append(float(chunk.deadlines.min()) if len(chunk.rows) else float("inf"))
        self.rows += len(chunk.rows)

    @property
    def due_at(self) -> float:
        """Monotonic second at which the next batch must close; infinity when nothing waits."""
        if not self._chunks:
            return float("inf")
        rows = min(self.rows, self.max_batch)
        return min(self._earliest) - (self._scoring.predict(rows) + self._publishing.predict(rows) if rows else 0.0)

    def closes(self, now: float, *, idle: bool, draining: bool = False) -> ClosedBy | None:
        """Why the next batch is to be taken now, None while it should go on filling."""
        if not self._chunks:
            return None
        if self.rows >= self.max_batch:
            return "full"
        if draining:
            return "drain"
        if idle or self.rows == 0:  # a chunk of undecodable records only needs no device
            return "idle"
        return "due" if now >= self.due_at else None

    def take(self, closed_by: ClosedBy) -> Batch:
        """The next batch, at most `max_batch` rows. Raises IndexError when nothing waits."""
        segments: list[Segment] = []
        room = self.max_batch
        if not self._chunks:
            raise IndexError("take from an empty batcher")
        while self._chunks:
            chunk = self._chunks[0]
            start, total = self._taken, len(chunk.rows)
            stop = min(start + room, total)
            if stop == start and total:
                break
            segment = Segment(chunk, start, stop)
            segments.append(segment)
            room -= stop - start
            self.rows -= stop - start
            if stop < total:
                self._taken = stop
                self._earliest[0] = float(chunk.deadlines[stop:].min())
                break
            self._chunks.popleft()
            self._earliest.popleft()
            self._taken = 0
        return Batch(segments, closed_by)

    def drop(self) -> int:
        """Forget everything that waits (its partitions are gone). Returns the rows dropped."""
        dropped = self.rows
        self._chunks.clear()
        self._earliest.clear()
        self._taken = self.rows = 0
        return dropped
