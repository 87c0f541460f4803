"""Reading what the worker writes, scores in whatever format, dead letters and alarms; what a live view counts of it."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from schemas.alarm import Alarm, JsonAlarm
from schemas.dead_letter import Header
from schemas.errors import UNREADABLE
from schemas.score import JsonScore, Score
from worker.replay.trace import LAST_MS


class ScoreReader:
    """Decodes scores in msgpack (an array) and in JSON (an object), told apart by their first byte."""

    def __init__(self) -> None:
        self._msgpack = msgspec.msgpack.Decoder(Score)
        self._json = msgspec.json.Decoder(JsonScore)

    def read(self, value: bytes | None) -> Score | None:
        """The score, or None for what is none."""
        if not value:
            return None
        try:
            return self._json.decode(value) if value[:1] == b"{" else self._msgpack.decode(value)
        except UNREADABLE:
            return None


class ReadDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """What a dead letter says of itself: a record that was not scored, and why."""

    key: str | None
    reason: str
    detail: str
    topic: str | None
    """Where the record stands, None where the dead letter does not say."""
    partition: int | None
    offset: int | None

    @property
    def place(self) -> str:
        """Of the record: topic/partition@offset."""
        parts = ["?" if part is None else part for part in (self.topic, self.partition, self.offset)]
        return "{}/{}@{}".format(*parts)


def dead(key: bytes | None, headers: Iterable[Header]) -> ReadDeadLetter | None:
    """The dead letter that the record of this key and these headers is, or None. Of equal headers the last one counts:
    the worker's own come after those of the event."""
    found = dict(headers)
    reason, detail = found.get("scorelane.reason"), found.get("scorelane.detail")
    if reason is None:
        return None
    topic = found.get("scorelane.topic")
    return ReadDeadLetter(
        key=None if key is None else _text(key),
        reason=_text(reason),
        detail=_text(detail or b""),
        topic=None if topic is None else _text(topic),
        partition=_number(found.get("scorelane.partition")),
        offset=_number(found.get("scorelane.offset")),
    )


def alarm(value: bytes | None) -> Alarm | None:
    """The alarm that a record's value is, or None."""
    try:
        found = msgspec.json.decode(value or b"", type=JsonAlarm)
    except UNREADABLE:
        return None
    return found if 0 <= found.time_ms <= LAST_MS else None


def _number(raw: bytes | None) -> int | None:
    """Somebody else's header may hold anything."""
    return int(raw) if raw is not None and len(raw) < 20 and raw.isdigit() else None


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def to_json(score: Score) -> bytes:
    """One line of JSON with named fields, whatever format the score had."""
    return msgspec.json.encode(JsonScore(*(getattr(score, name) for name in Score.__struct_fields__)))


@dataclass(slots=True)
class ScoreCounts:
    """Counts of scores, dead letters and alarms; `last`, `last_dead` and `last_alarms` keep the newest few."""

    scores: int = 0
    late: int = 0
    unreadable: int = 0
    dead: int = 0
    alarms: int = 0
    engines: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    last_dead: deque[ReadDeadLetter] = field(default_factory=lambda: deque(maxlen=10))
    last_alarms: deque[Alarm] = field(default_factory=lambda: deque(maxlen=10))
    last: deque[Score] = field(default_factory=lambda: deque(maxlen=10))

    @property
    def shown(self) -> int:
        """All but what is unreadable."""
        return self.scores + self.dead + self.alarms

    def add(self, score: Score | ReadDeadLetter | Alarm | None) -> None:
        if isinstance(score, Alarm):
            self.alarms += 1
            self.last_alarms.append(score)
            return
        if isinstance(score, ReadDeadLetter):
            self.dead += 1
            self.last_dead.append(score)
            return
        if score is None:
            self.unreadable += 1
            return
        self.scores += 1
        self.late += score.late
        self.engines[score.engine] += 1
        if score.reason is not None:
            self.reasons[score.reason] += 1
        self.last.append(score)

    def engine_mix(self) -> str:
        """For example "ort 98.0 %, light 2.0 %"."""
        return ", ".join(f"{name} {100 * n / self.scores:.1f} %" for name, n in self.engines.most_common())

    def __str__(self) -> str:
        text = f"{self.scores} scores, {self.late} late"
        text += f", {self.engine_mix()}" if self.scores else ""
        text += f", {self.dead} dead letter{'s' if self.dead != 1 else ''}" if self.dead else ""
        text += f", {self.alarms} alarm{'s' if self.alarms != 1 else ''}" if self.alarms else ""
        return text + (f", {self.unreadable} records that are no scores" if self.unreadable else "")
