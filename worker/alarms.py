"""When ops are told, and when they are told that it is over. Pure: who calls publishes what is returned.

A cause is raised when it was over its limit at every check for `raise_s`, and cleared when it was below
`clear_part` of the limit for `clear_s`; between the two it stays as it is. A window with fewer than `min_rows` rows is
no evidence and counts as below. What is normal is learned while no cause but the dead letters is over its limit, so an
alarm never becomes the normal state. A lost device is certain and is raised at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import exp, inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.alarm import Alarm
from worker.latency import Latencies
from worker.window import Window


class AlarmCause(StrEnum):
    """What is exceeded. A closed set, since it is a metric label."""

    LATENCY_P99 = "latency_p99"
    LATENCY_MEAN = "latency_mean"
    MISSES = "misses"
    ERRORS = "errors"
    DEAD_LETTERS = "dead_letters"
    QUEUE_AGE = "queue_age"
    DEVICE_LOST = "device_lost"


IN_SECONDS: Final = frozenset({AlarmCause.LATENCY_P99, AlarmCause.LATENCY_MEAN, AlarmCause.QUEUE_AGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmPolicy:
    window_s: float = 1.0
    """Over which latencies, misses and errors are taken."""
    min_rows: int = 100
    """Rows that a window needs to raise anything."""
    factor: float = 1.5
    """Times the normal p99 and mean that raise: +50 %."""
    floor_s: float = 0.005
    """Latencies below this raise nothing, however short they are otherwise."""
    miss_part: float = 0.01
    """Part of rows ready after their deadline that raises."""
    error_part: float = 0.05
    """Part of rows that the primary engine failed on that raises."""
    dead_letter_part: float = 0.05
    """Part of records that became dead letters that raises."""
    queue_age_s: float = 0.1
    """Wait of the oldest row that raises."""
    raise_s: float = 0.1
    clear_s: float = 1.0
    clear_part: float = 0.8
    learn_s: float = 10.0
    """Time over which what is normal is learned at first."""
    memory_s: float = 300.0
    """Time over which it is followed after that."""

    def __post_init__(self) -> None:
        for name in ("window_s", "min_rows", "queue_age_s", "learn_s", "memory_s"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name}: {getattr(self, name)}: must be a positive number")
        if not self.factor > 1:
            raise ValueError(f"factor: {self.factor}: must be above 1")
        for name in ("miss_part", "error_part", "dead_letter_part", "clear_part"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}: must be between 0 and 1")


@dataclass(slots=True)
class Signal:
    """Hysteresis of one cause."""

    raised: bool = False
    turning_since: float | None = None
    """Since when all checks have spoken against the present state."""

    def check(self, observed: float, limit: float, policy: AlarmPolicy, now: float) -> bool:
        """Whether the state changes at this check."""
        against = observed <= policy.clear_part * limit if self.raised else observed > limit
        if not against:
            self.turning_since = None
            return False
        if self.turning_since is None:
            self.turning_since = now
        if now - self.turning_since < (policy.clear_s if self.raised else policy.raise_s if limit else 0.0):
            return False
        self.raised = not self.raised
        self.turning_since = None
        return True


class Normal:
    """A learned value: the mean over `learn_s` of checks at first, then followed with a memory of `memory_s`."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._sum = 0.0
        self._for = 0.0

    def learn(self, observed: float, seconds: float, policy: AlarmPolicy) -> None:
        if self.value is not None:
            self.value += (observed - self.value) * (1 - exp(-seconds / policy.memory_s))
            return
        self._sum += observed * seconds
        self._for += seconds
        if self._for >= policy.learn_s:
            self.value = self._sum / self._for


class Alarms:
    """The alarms of one topic, all its lanes together. Times are seconds of one monotonic clock."""

    def __init__(self, topic: str, policy: AlarmPolicy | None = None) -> None:
        self.policy = policy or AlarmPolicy()
        self.generation = 0
        self._topic = topic
        self._latencies = Latencies(self.policy.window_s)
        # Rows answered, late, failed on by the primary; records done with, and of them dead letters.
        self._counts = Window(self.policy.window_s, 5)
        self._queue_age = 0.0
        self._lost = False
        self._p99 = Normal()
        self._mean = Normal()
        self._learned_at: float | None = None
        self._signals = {cause: Signal() for cause in AlarmCause}

    @property
    def raised(self) -> frozenset[AlarmCause]:
        return frozenset(cause for cause, signal in self._signals.items() if signal.raised)

    def answered(self, seconds: NDArray[np.float64], late: int, now: float) -> None:
        """Scores are ready, `seconds` [n] after their events' arrival, `late` of them after their deadline."""
        self._latencies.add(seconds, now)
        self._counts.add(now, (len(seconds), late, 0, 0, 0))

    def failed(self, rows: int, now: float) -> None:
        """The primary engine failed on a batch of `rows`; another one answers (and `answered` is called too)."""
        self._counts.add(now, (0, 0, rows, 0, 0))

    def settled(self, records: int, dead: int, now: float) -> None:
        """`records` are done with, `dead` of them as dead letters."""
        self._counts.add(now, (0, 0, 0, records, dead))

    def evidence(self, cause: AlarmCause, now: float) -> int:
        """Events of the window that the cause's value is taken over."""
        answered, _, failed, records, _ = self._counts.totals(now).tolist()
        return int({AlarmCause.ERRORS: max(answered, failed), AlarmCause.DEAD_LETTERS: records}.get(cause, answered))

    def queue_age(self, seconds: float) -> None:
        """The longest wait in the queue now."""
        self._queue_age = seconds

    def device_lost(self, lost: bool) -> None:
        self._lost = lost

    def check(self, now: float, wall_ms: float) -> list[Alarm]:
        """What is raised and cleared now, for the alarm topic. To be called every `raise_s / 2` or so."""
        changed = []
        calm = True
        for cause, observed, limit in self._observe(now):
            signal = self._signals[cause]
            changes = signal.check(observed, limit, self.policy, now)
            # Records that nobody can score make the others neither slower nor faster.
            calm = calm and (cause is AlarmCause.DEAD_LETTERS or (observed <= limit and not signal.raised))
            if not changes:
                continue
            self.generation += 1
            unit = 1000.0 if cause in IN_SECONDS else 1.0
            alarm = Alarm(
                state="raised" if signal.raised else "cleared",
                cause=cause.value,
                topic=self._topic,
                observed=observed * unit,
                limit=limit * unit,
                time_ms=int(wall_ms),
                generation=self.generation,
            )
            changed.append(alarm)
        if calm:
            self._learn(now)
        return changed

    def _observe(self, now: float) -> Iterator[tuple[AlarmCause, float, float]]:
        """(cause, observed, limit) of every cause, in seconds and parts."""
        policy = self.policy
        answered, late, failed, records, dead = self._counts.totals(now).tolist()
        if answered < policy.min_rows:
            p99 = mean = 0.0
        else:
            p99, mean = self._latencies.quantile(0.99, now), self._latencies.mean(now)
        yield AlarmCause.LATENCY_P99, p99, self._limit(self._p99)
        yield AlarmCause.LATENCY_MEAN, mean, self._limit(self._mean)
        yield AlarmCause.MISSES, late / answered if answered >= policy.min_rows else 0.0, policy.miss_part
        # Failed rows are answered by another engine, so they are among the answered ones, sooner or later.
        rows = max(answered, failed)
        yield AlarmCause.ERRORS, failed / rows if rows >= policy.min_rows else 0.0, policy.error_part
        yield AlarmCause.DEAD_LETTERS, dead / records if records >= policy.min_rows else 0.0, policy.dead_letter_part
        yield AlarmCause.QUEUE_AGE, self._queue_age, policy.queue_age_s
        yield AlarmCause.DEVICE_LOST, float(self._lost), 0.0

    def _limit(self, normal: Normal) -> float:
        return inf if normal.value is None else max(self.policy.floor_s, self.policy.factor * normal.value)

    def _learn(self, now: float) -> None:
        """Once a window, so that no row is learned from twice."""
        policy = self.policy
        if self._learned_at is None:
            self._learned_at = now
        if now - self._learned_at < policy.window_s:
            return
        self._learned_at = now
        if self._latencies.count(now) >= policy.min_rows:
            self._p99.learn(self._latencies.quantile(0.99, now), policy.window_s, policy)
            self._mean.learn(self._latencies.mean(now), policy.window_s, policy)


def told(alarm: Alarm, alarms: Alarms, now: float) -> str:
    """What an alarm says in the log: as `summary`, but how many events the window holds where they are too few."""
    cause = AlarmCause(alarm.cause)
    events = alarms.evidence(cause, now)
    if cause in (AlarmCause.QUEUE_AGE, AlarmCause.DEVICE_LOST) or events >= alarms.policy.min_rows:
        return summary(alarm)
    return summary(alarm, f"only {events} events" if events else "no events")


def summary(alarm: Alarm, observed: str = "") -> str:
    """An alarm's cause, what was observed and the limit, in their units."""
    if alarm.cause == AlarmCause.DEVICE_LOST:
        return alarm.cause
    factor, unit = (1.0, "ms") if alarm.cause in IN_SECONDS else (100.0, "%")
    observed = observed or f"{alarm.observed * factor:.4g} {unit}"
    return f"{alarm.cause}: {observed}, limit {alarm.limit * factor:.4g} {unit}"
