"""Rows on their way: a chunk from one poll of one partition, the segments of it that a batch takes, and the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.dead_letter import Header
from schemas.rows import Rows, Tensors
from worker.classes import ShedPolicy, ShedWhy
from worker.edf import ranges
from worker.ledger import LedgerEntry

ClosedBy = Literal["full", "enough", "due", "idle", "drain", "busy"]


class Record(Protocol):
    """What the worker needs of a consumed Kafka record."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...


@dataclass(slots=True, eq=False)
class Chunk:
    """The records of one poll of one partition, decoded.

    `deadlines[i]` (monotonic seconds) and row i of `rows` are the same event; `rows.positions[i]` is its record.
    """

    topic: str
    partition: int
    records: Sequence[Record]
    rows: Rows
    keys: list[bytes | None]
    """Record key of each row."""
    offsets: list[int]
    """Record offset of each row."""
    timestamps_ms: NDArray[np.float64]
    """Record timestamp of each row."""
    deadlines: NDArray[np.float64]
    entry: LedgerEntry
    arrived_at: float
    """Monotonic second of the poll."""
    fenced: Callable[[], bool]
    """True once the partition is no longer this worker's: its rows are neither published nor settled."""
    nbytes: int
    """Memory held by the records and the rows, for the bounds."""


class Segment(NamedTuple):
    """Rows [start, stop) of a chunk. The segment that starts at 0 also carries the chunk's undecodable records."""

    chunk: Chunk
    start: int
    stop: int

    def settle(self) -> None:
        """Tell the ledger that every record of the segment is done with."""
        rows = self.chunk.rows
        self.chunk.entry.settle(rows.positions[self.start : self.stop])
        if self.start == 0 and rows.invalid:
            self.chunk.entry.settle(np.array([position for position, _ in rows.invalid], dtype=np.int64))


@dataclass(slots=True, eq=False)
class Batch:
    """Rows that are scored together, in the order of their segments."""

    segments: list[Segment]
    closed_by: ClosedBy | Literal["shed"]
    """Why the batch was closed (see `worker.batcher`); "shed": it never was, its rows went for `shed_why`."""
    shed: ShedPolicy | None = None
    """What becomes of the rows, where they are not to be scored by the primary engine."""
    shed_why: ShedWhy | Literal["late"] | None = None
    """Why rows were shed, or given up: nobody could score them in time."""

    def __len__(self) -> int:
        return sum(segment.stop - segment.start for segment in self.segments)

    def deadlines(self) -> NDArray[np.float64]:
        return np.concatenate([s.chunk.deadlines[s.start : s.stop] for s in self.segments])

    def features(self) -> Tensors:
        """Model inputs [n, *row shape]; a view where the batch is one segment."""
        if len(self.segments) == 1:
            chunk, start, stop = self.segments[0]
            return {name: tensor[start:stop] for name, tensor in chunk.rows.tensors.items()}
        parts = [(s.chunk.rows.tensors, s.start, s.stop) for s in self.segments if s.stop > s.start]
        return {name: np.concatenate([t[name][a:b] for t, a, b in parts]) for name in parts[0][0]} if parts else {}

    def select(self, rows: NDArray[np.int64]) -> Batch:
        """The batch of these rows (ascending indices), without the segments that have none."""
        wanted = np.zeros(len(self), dtype=np.bool_)
        wanted[rows] = True
        segments: list[Segment] = []
        at = 0
        for chunk, start, stop in self.segments:
            inside = np.flatnonzero(wanted[at : at + stop - start])
            segments += [Segment(chunk, start + a, start + b) for a, b in ranges(inside)]
            at += stop - start
        return replace(self, segments=segments)

    def parts(self, *rows: NDArray[np.int64]) -> list[Batch]:
        """A batch for each of these sets of rows, which together are all. The first has the segments without rows."""
        first, *others = map(self.select, rows)
        first.segments += [segment for segment in self.segments if segment.start == segment.stop]
        return [first, *others]

    def split(self) -> tuple[Batch, Batch]:
        """Two batches of half the rows each, for finding the row that an engine refuses. Needs at least two rows."""
        left: list[Segment] = []
        right: list[Segment] = []
        room = len(self) // 2
        for chunk, start, stop in self.segments:
            cut = min(start + room, stop)
            room -= cut - start
            if cut > start or start == stop:
                left.append(Segment(chunk, start, cut))
            if stop > cut:
                right.append(Segment(chunk, cut, stop))
        return replace(self, segments=left), replace(self, segments=right)
