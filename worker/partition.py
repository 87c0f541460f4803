"""An assigned partition: what is owed of it, which lane it is bound to, how fast it flows."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka import TopicPartition

from worker.lane import Lane
from worker.ledger import Ledger


class Partition:
    """Lives for one assignment: the next one makes a new object, whose offsets nothing late can touch."""

    def __init__(self, topic: str, number: int, lane: Lane) -> None:
        self.topic = topic
        self.number = number
        self.lane = lane
        self.ledger = Ledger(f"topic {topic}, partition {number}")
        self.taken = 0
        """Records taken in since the rates were last read."""
        self._fenced = False
        self._moving_to: Lane | None = None

    def is_fenced(self) -> bool:
        """True once the partition was given up."""
        return self._fenced

    def fence(self) -> None:
        self._fenced = True

    def move(self, lane: Lane) -> None:
        """Bind to another lane, as soon as nothing of the partition is in work: its scores keep their order."""
        self._moving_to = lane if lane is not self.lane else None

    @property
    def has_room(self) -> bool:
        """Whether to poll the partition now."""
        if self._moving_to is not None:
            if self.ledger.unsettled:
                return False
            self.lane, self._moving_to = self._moving_to, None
        return self.lane.has_room


def shown(partitions: Iterable[TopicPartition]) -> str:
    """For a log line."""
    return ", ".join(f"{tp.topic}[{tp.partition}]" for tp in sorted(partitions)) or "no partitions"
