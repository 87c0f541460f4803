"""Ordered commit of work that completes in any order: one ledger per partition, one entry per polled chunk.

The idea is that of the "checkpoint" packages of stream processors (for one, Jeffail/checkpoint): the commit position is
the end of the longest prefix of records that are all settled, so an offset never passes a record that is still in work.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from worker.errors import OffsetsWentBack

Positions = slice | NDArray[np.int64]


class LedgerEntry:
    """The records of one chunk and which of them are settled."""

    __slots__ = ("_done", "_offsets", "unsettled")

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = offsets
        self._done = np.zeros(len(offsets), dtype=np.bool_)
        self.unsettled = len(offsets)

    def settle(self, positions: Positions) -> None:
        """Mark records by their index in the chunk. Settling a record twice is a bug and raises ValueError."""
        marks = self._done[positions]
        if marks.any():
            raise ValueError("a record was settled twice; this is a bug")
        self._done[positions] = True
        self.unsettled -= len(marks)

    @property
    def next_offset(self) -> int:
        """Offset after the last record of the settled prefix, or of the first record when none is settled."""
        if self.unsettled == 0:
            return self._offsets[-1] + 1
        prefix = int(self._done.argmin())
        return self._offsets[prefix - 1] + 1 if prefix else self._offsets[0]


class Ledger:
    """Commit position of one partition. Offsets may have gaps (compaction, transaction markers)."""

    def __init__(self, of: str) -> None:
        """`of` names the partition in errors."""
        self._of = of
        self._entries: deque[LedgerEntry] = deque()
        self._last_offset = -1
        self._reached: int | None = None
        self._position: int | None = None
        self._began_again: int | None = None

    def reach(self, offset: int) -> None:
        """Every record before `offset` is entered. It is past the last one where transaction markers follow or records
        were compacted away, and known before the first one."""
        self._reached = offset

    def open(self, offsets: list[int]) -> LedgerEntry:
        """Enter a non-empty chunk of increasing offsets.

        Raises `OffsetsWentBack` when it does not come after the last one. From then on the chunk's beginning is what is
        committed: the old position would skip as much of the partition that there is now.
        """
        if offsets[0] <= self._last_offset:
            self._began_again = offsets[0]
            raise OffsetsWentBack(
                f"{self._of}: offset {offsets[0]} came after offset {self._last_offset}: the topic was probably deleted"
                f" and created again, or truncated. {self.unsettled} records that were taken in before are left without"
                " a score, and what was not read by then is gone with the old topic; nothing is lost from offset"
                f" {offsets[0]} on, where the group goes on: start the worker again"
            )
        self._last_offset = offsets[-1]
        entry = LedgerEntry(offsets)
        self._entries.append(entry)
        return entry

    @property
    def unsettled(self) -> int:
        """Records that are entered and not settled."""
        return sum(entry.unsettled for entry in self._entries)

    @property
    def next_offset(self) -> int | None:
        """Offset to commit: that of the first record which is not settled. None while it is not known."""
        if self._began_again is not None:
            return self._began_again
        while self._entries and self._entries[0].unsettled == 0:
            self._position = self._entries.popleft().next_offset
        if self._entries:
            return self._entries[0].next_offset
        known = [at for at in (self._position, self._reached) if at is not None]
        return max(known, default=None)
