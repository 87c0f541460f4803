"""What became of each event of a replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.alarm import JsonAlarm
from schemas.score import JsonScore, Score
from schemas.wire import Format
from worker.breaker import Transition
from worker.publisher import Messages

UNANSWERED: Final = -1


@dataclass(frozen=True, slots=True)
class Move:
    """A breaker moved, at a second of the replay."""

    at: float
    lane: str
    engine: str
    transition: Transition


class Tally:
    """Events are numbered in the order of partition and offset: event `starts[partition] + offset`."""

    def __init__(self, sizes: Sequence[int], scores: str, dead_letters: str, alarms: str, format: Format) -> None:
        """`sizes`: records of each partition; then the topics with what the worker says, and the scores' format."""
        self.starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        events = int(self.starts[-1])
        self.answered_at: NDArray[np.float64] = np.full(events, inf)
        """Second at which the brokers acknowledged the event's score, marker or dead letter; infinity: never."""
        self.fates: list[tuple[str, str | None]] = [("scored", None)]
        """(engine, reason): "none" for skipped ones; ("dead letter", reason) for those."""
        self.fate: NDArray[np.int64] = np.full(events, UNANSWERED)
        """Index into `fates` of each event."""
        self.duplicates = 0
        """Answers to an event that had one."""
        self.moves: list[Move] = []
        self.alarms: list[tuple[float, JsonAlarm]] = []
        """(second of the replay, alarm)."""
        self._index: dict[tuple[str, str | None], int] = {}
        self._topics = {scores: self._scored, dead_letters: self._dead, alarms: self._alarmed}
        self._score = (
            msgspec.msgpack.Decoder(Score).decode if format == "msgpack" else msgspec.json.Decoder(JsonScore).decode
        )
        self._alarm = msgspec.json.Decoder(JsonAlarm).decode

    def receive(self, topic: str, messages: Messages, at: float) -> None:
        """Messages that the worker published and that are acknowledged at second `at`."""
        self._topics[topic](messages, at)

    def _scored(self, messages: Messages, at: float) -> None:
        for value in messages.values:
            score = self._score(value or b"")
            event = int(self.starts[score.partition]) + score.offset
            self._answer(event, (score.engine, score.reason), at)

    def _dead(self, messages: Messages, at: float) -> None:
        for headers in messages.headers or []:
            said = dict(headers)
            partition, offset = (int(said[f"scorelane.{name}"] or b"") for name in ("partition", "offset"))
            reason = (said["scorelane.reason"] or b"").decode()
            self._answer(int(self.starts[partition]) + offset, ("dead letter", reason), at)

    def _alarmed(self, messages: Messages, at: float) -> None:
        self.alarms += [(at, self._alarm(value or b"")) for value in messages.values]

    def _answer(self, event: int, fate: tuple[str, str | None], at: float) -> None:
        if self.fate[event] != UNANSWERED:
            self.duplicates += 1
            return
        index = self._index.get(fate)
        if index is None:
            index = self._index[fate] = len(self._index)
            self.fates[index:] = [fate]
        self.fate[event] = index
        self.answered_at[event] = at
