"""The result of a replay in numbers: per class of service, and what breakers and alarms did."""

from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from worker.outcome import SKIPPED
from worker.replay.script import Script
from worker.replay.tally import UNANSWERED, Tally


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one class. All counts are events, each event is counted once."""

    name: str
    events: int
    primary: int
    """Scored by the first engine of the chain, or by a segment's own."""
    fallback: dict[str, int]
    """Scored by another engine, by reason."""
    skipped: dict[str, int]
    """Published without a score, by reason."""
    dead_letters: dict[str, int]
    """By reason."""
    lost: int
    """Neither of these. Anything but 0 is a bug."""
    missed: int
    """Scores that were acknowledged after the deadline; skipped, refused and lost events count as missed too."""
    in_time: float
    """Part of the events that were not missed; undecodable ones are left out."""
    p50_ms: float
    """From an event's arrival at the broker to the acknowledgement of its score."""
    p99_ms: float
    max_ms: float


class MoveReport(msgspec.Struct, frozen=True):
    at_s: float
    lane: str
    engine: str
    before: str
    after: str
    cause: str


class AlarmReport(msgspec.Struct, frozen=True):
    at_s: float
    state: str
    cause: str
    observed: float
    limit: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    events: int
    seconds: float
    """From the first event to the end of the drain."""
    duplicates: int
    """Answers to events that had one already."""
    uncommitted: int
    """Records behind the last committed offsets at the end."""
    classes: list[ClassReport]
    batches: dict[str, int]
    """Batches, by what closed them."""
    rows_a_batch: float
    sessions: int
    """Sessions opened, those in place of hung ones among them."""
    breaker: list[MoveReport]
    alarms: list[AlarmReport]

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def class_report(name: str, events: NDArray[np.bool_], script: Script, tally: Tally) -> ClassReport:
    """The events marked in `events`."""
    fates = Counter(tally.fate[events].tolist())
    lost = fates.pop(UNANSWERED, 0)
    primary = 0
    fallback: dict[str, int] = {}
    skipped: dict[str, int] = {}
    dead: dict[str, int] = {}
    scored = np.zeros(len(tally.fates), dtype=np.bool_)
    undecodable = np.zeros(len(tally.fates), dtype=np.bool_)
    for index, count in fates.items():
        engine, reason = tally.fates[index]
        if engine == "dead letter":
            dead[reason or ""] = count
            undecodable[index] = reason not in ("late", "shed")
        elif engine == SKIPPED:
            skipped[reason or ""] = count
        else:
            scored[index] = True
            if reason is None or reason.startswith("segment:"):
                primary += count
            else:
                fallback[reason] = count
    answered = events & (tally.fate != UNANSWERED)
    has_score = answered.copy()
    has_score[answered] = scored[tally.fate[answered]]
    countable = events.copy()
    countable[answered] &= ~undecodable[tally.fate[answered]]
    in_time = has_score & (tally.answered_at <= script.due)
    latency = (tally.answered_at - script.arrives)[has_score] * 1000.0
    total = int(countable.sum())
    return ClassReport(
        name=name,
        events=int(events.sum()),
        primary=primary,
        fallback=dict(sorted(fallback.items())),
        skipped=dict(sorted(skipped.items())),
        dead_letters=dict(sorted(dead.items())),
        lost=lost,
        missed=total - int(in_time.sum()),
        in_time=round(int(in_time.sum()) / total, 6) if total else 1.0,
        p50_ms=_quantile(latency, 0.5),
        p99_ms=_quantile(latency, 0.99),
        max_ms=_quantile(latency, 1.0),
    )


def breaker_report(tally: Tally) -> list[MoveReport]:
    return [
        MoveReport(
            round(move.at, 6),
            move.lane,
            move.engine,
            move.transition.before.value,
            move.transition.after.value,
            move.transition.cause.value,
        )
        for move in tally.moves
    ]


def alarm_report(tally: Tally) -> list[AlarmReport]:
    return [
        AlarmReport(round(at, 6), alarm.state, alarm.cause, round(alarm.observed, 6), round(alarm.limit, 6))
        for at, alarm in tally.alarms
    ]


def _quantile(values: NDArray[np.float64], q: float) -> float:
    """One of the values, not a mean of two; 0 for none."""
    return round(float(np.quantile(values, q, method="higher")), 3) if len(values) else 0.0
