"""Chunks made by hand, for tests of what happens after decoding."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.errors import InvalidEvent
from schemas.rows import EventKey, Rows
from worker.batch import Chunk
from worker.ledger import Ledger


@dataclass
class Record:
    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class Fence:
    up: bool = False

    def __call__(self) -> bool:
        return self.up


@dataclass
class ManualClock:
    now: float = 0.0
    wall: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> float:
        return self.wall


@dataclass
class Maker:
    """Makes consecutive chunks of one partition; the value of the feature `x` is the record's offset."""

    partition: int = 0
    ledger: Ledger = field(default_factory=lambda: Ledger("topic t, partition 0"))
    fence: Fence = field(default_factory=Fence)
    next_offset: int = 0

    def chunk(
        self,
        deadlines: Sequence[float],
        *,
        bad: Sequence[int] = (),
        keys: Sequence[EventKey | None] | None = None,
        record_keys: bool = False,
    ) -> Chunk:
        """A chunk with a row per deadline and undecodable records at the positions `bad`."""
        total = len(deadlines) + len(bad)
        positions = np.array([position for position in range(total) if position not in bad], dtype=np.int64)
        offsets = list(range(self.next_offset, self.next_offset + total))
        self.next_offset += total
        records = [
            Record(offset, 1000 + offset, b"k%d" % offset if record_keys else None, b"v%d" % offset)
            for offset in offsets
        ]
        rows = Rows(
            tensors={"x": np.array([[offsets[p]] for p in positions], dtype=np.float32).reshape(-1, 1)},
            keys=list(keys) if keys is not None else [None] * len(deadlines),
            positions=positions,
            event_time_ms=np.full(len(deadlines), np.nan),
            deadline_ms=np.full(len(deadlines), np.nan),
            invalid=[(position, InvalidEvent("malformed", "made so")) for position in bad],
        )
        return Chunk(
            topic="t",
            partition=self.partition,
            records=records,
            rows=rows,
            keys=[records[p].key for p in positions],
            offsets=[offsets[p] for p in positions],
            timestamps_ms=np.array([records[p].timestamp for p in positions], dtype=np.float64),
            deadlines=np.array(deadlines, dtype=np.float64),
            arrived_at=0.0,
            entry=self.ledger.open(offsets),
            fenced=self.fence,
            nbytes=100 * total,
        )
