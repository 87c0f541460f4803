"""Whether the primary engine may be used: closed (yes), open (no), half-open (a few probes). Pure.

Three rules:
- Everything that moves the state is a row of `MOVES`, and `Breaker._move` is the only place that moves it.
- Each move begins a generation. A batch carries the generation it was admitted in, and what it reports is ignored once
  the generation is over, so that a late success cannot close the breaker nor a late failure reopen it (the rule of
  sony/gobreaker).
- Time passes only in `poll`: who does not poll stays where it is.

Against flapping: each opening without a calm time before it doubles the open time, up to a bound; windows need a
minimum count; a probe must be as fast as a closed breaker would demand.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Final

from worker.service_time import ServiceTime
from worker.window import Window


class State(StrEnum):
    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class Cause(StrEnum):
    """Why the state changed. A closed set, since it is a metric label."""

    ERRORS = "errors"
    LATENCY = "latency"
    DEVICE_LOST = "device_lost"
    HELD = "held"
    OPEN_TIME_OVER = "open_time_over"
    PROBES_PASSED = "probes_passed"
    PROBES_MISSING = "probes_missing"


MOVES: Final = MappingProxyType(
    {
        (State.CLOSED, Cause.ERRORS): State.OPEN,
        (State.CLOSED, Cause.LATENCY): State.OPEN,
        (State.CLOSED, Cause.DEVICE_LOST): State.OPEN,
        (State.CLOSED, Cause.HELD): State.OPEN,
        (State.OPEN, Cause.OPEN_TIME_OVER): State.HALF_OPEN,
        (State.HALF_OPEN, Cause.ERRORS): State.OPEN,
        (State.HALF_OPEN, Cause.LATENCY): State.OPEN,
        (State.HALF_OPEN, Cause.DEVICE_LOST): State.OPEN,
        (State.HALF_OPEN, Cause.HELD): State.OPEN,
        (State.HALF_OPEN, Cause.PROBES_MISSING): State.OPEN,
        (State.HALF_OPEN, Cause.PROBES_PASSED): State.CLOSED,
    }
)
"""(state, cause) -> state. A cause that is not listed for a state changes nothing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    window_s: float = 1.0
    """Over which errors and slow batches are counted."""
    min_count: int = 10
    """Batches that a window needs before it says anything."""
    error_part: float = 0.5
    """Part of a window's batches whose failure opens."""
    consecutive: int = 3
    """Failed batches in a row that open, whatever the window says."""
    slow_factor: float = 1.5
    """Times the normal service time (mean and p99 alike) at which an engine is slow: +50 %."""
    never_slow_s: float = 0.010
    """A batch that took less than this is not slow, however fast the engine is otherwise."""
    min_slow: int = 3
    """Slow batches that a window needs to open for latency, so that one hiccup never does."""
    open_s: float = 0.25
    """First open time."""
    max_open_s: float = 1.0
    """Bound of the doubling open time; with the probes' time it bounds the return to a recovered engine."""
    calm_s: float = 10.0
    """Closed for so long, the next opening is a first one again."""
    probes: int = 3
    """Good batches in half-open that close; as many may be under way at once."""
    probe_timeout_s: float = 5.0
    """Probes that were not reported for so long are given up as lost."""

    def __post_init__(self) -> None:
        for name in ("min_count", "consecutive", "min_slow", "probes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}: must be at least 1")
        for name in ("window_s", "open_s", "calm_s", "probe_timeout_s"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name}: {getattr(self, name)}: must be positive")
        if self.max_open_s < self.open_s:
            raise ValueError(f"max_open_s: {self.max_open_s}: must be at least open_s ({self.open_s})")
        if not 0 < self.error_part <= 1:
            raise ValueError(f"error_part: {self.error_part}: must be above 0 and at most 1")
        if self.slow_factor <= 1:
            raise ValueError(f"slow_factor: {self.slow_factor}: must be above 1")


@dataclass(frozen=True, slots=True)
class Transition:
    """One move, for the log, the metrics and the alarm topic."""

    before: State
    after: State
    cause: Cause
    generation: int
    """The generation that begins."""
    at: float
    """Monotonic seconds."""


P99: Final = 0.01
NORMAL_MEMORY: Final = 4096
"""Batches by which the normal service time is known."""

CLIP: Final = 2.0
"""A batch counts for at most this times the slow factor in a mean, so that one hang does not make it."""


def normal_time(points: Iterable[tuple[int, float]] = ()) -> ServiceTime:
    """A `ServiceTime` to know what is normal by: its margin is the p99, and it forgets slowly, so that an engine that
    turns slow does not become the normal one within the window that should notice it. `points`: (rows, seconds)."""
    return ServiceTime.measured(points, quantile=1 - P99, memory=NORMAL_MEMORY)


class Breaker:
    """Guards one engine, for one lane or for all lanes of a device. Times are seconds of one monotonic clock."""

    def __init__(self, normal: ServiceTime, policy: BreakerPolicy | None = None) -> None:
        """`normal` (see `normal_time`) is how long batches take while all is well; the breaker teaches and owns it."""
        self.policy = policy or BreakerPolicy()
        self.state = State.CLOSED
        self.generation = 0
        self._normal = normal
        self._window = Window(self.policy.window_s, 4)  # batches, failed, slow, times the normal
        self._failed_in_row = 0
        self._open_s = self.policy.open_s
        self._until = inf
        self._since = -inf
        self._held: set[str] = set()
        self._probing = 0
        self._probed_at = -inf
        self._passed = 0

    def poll(self, now: float) -> Transition | None:
        """Make the move that is due by time, if any. To be called before `admit`."""
        if self.state is State.OPEN and now >= self._until and not self._held:
            return self._move(Cause.OPEN_TIME_OVER, now)
        if self.state is State.HALF_OPEN and self._probing and now >= self._probed_at + self.policy.probe_timeout_s:
            return self._move(Cause.PROBES_MISSING, now)
        return None

    def admit(self, now: float) -> int | None:
        """The generation under which one batch may use the engine, None when it must not.

        Each admitted batch is to be reported once: `succeeded` or `failed`.
        """
        if self.state is State.OPEN:
            return None
        if self.state is State.HALF_OPEN:
            if self._probing + self._passed >= self.policy.probes:
                return None
            self._probing += 1
            self._probed_at = now
        return self.generation

    def succeeded(self, generation: int, rows: int, seconds: float, now: float) -> Transition | None:
        """The batch of `rows` was scored in `seconds` of the engine's time (waiting in our queues is not its fault)."""
        if generation != self.generation:
            return None
        ratio, slow = self._judge(rows, seconds)
        if self.state is State.HALF_OPEN:
            self._probing -= 1
            if slow:
                return self._move(Cause.LATENCY, now)
            self._passed += 1
            return self._move(Cause.PROBES_PASSED, now) if self._passed >= self.policy.probes else None
        self._failed_in_row = 0
        policy = self.policy
        self._window.add(now, (1, 0, slow, min(ratio, CLIP * policy.slow_factor)))
        if not slow:
            self._normal.observe(rows, seconds)
        batches, failed, slow_batches, ratios = self._window.totals(now)
        good = batches - failed
        tail = slow_batches >= policy.min_slow and slow_batches > P99 * good
        if good >= policy.min_count and (tail or ratios > policy.slow_factor * good):
            return self._move(Cause.LATENCY, now)
        return None

    def failed(self, generation: int, now: float) -> Transition | None:
        """The batch failed or was left behind at its deadline."""
        if generation != self.generation:
            return None
        if self.state is State.HALF_OPEN:
            return self._move(Cause.ERRORS, now)
        self._failed_in_row += 1
        self._window.add(now, (1, 1, 0, 0))
        batches, failed, _, _ = self._window.totals(now)
        enough = batches >= self.policy.min_count and failed >= self.policy.error_part * batches
        return self._move(Cause.ERRORS, now) if enough or self._failed_in_row >= self.policy.consecutive else None

    def lost(self, now: float) -> Transition | None:
        """The device is lost. Open until `release(Cause.DEVICE_LOST, ...)`, when another engine stands in its place."""
        self._held.add(Cause.DEVICE_LOST)
        return self._move(Cause.DEVICE_LOST, now)

    def hold(self, name: str, now: float) -> Transition | None:
        """An alarm from outside keeps the breaker open until it is released by the same name. Idempotent."""
        self._held.add(name)
        return self._move(Cause.HELD, now)

    def release(self, name: str, now: float) -> None:
        """What `hold` or `lost` has raised is over. The first probe follows at the next `poll`, unless others hold."""
        if name in self._held:
            self._held.remove(name)
            if not self._held and self.state is State.OPEN:
                self._until = min(self._until, max(now, self._since + self.policy.open_s))

    def _judge(self, rows: int, seconds: float) -> tuple[float, bool]:
        """Times the normal mean that the batch took, and whether it is above the normal p99 by more than the factor."""
        policy = self.policy
        if seconds <= policy.never_slow_s or not self._normal.known:
            return 1.0, False
        return seconds / self._normal.expected(rows), seconds > policy.slow_factor * self._normal.predict(rows)

    def _move(self, cause: Cause, now: float) -> Transition | None:
        before = self.state
        after = MOVES.get((before, cause))
        if after is None:
            return None
        if after is State.OPEN:
            calm = before is State.CLOSED and now - self._since >= self.policy.calm_s
            self._open_s = self.policy.open_s if calm else min(2 * self._open_s, self.policy.max_open_s)
            self._until = now + self._open_s
        self.state = after
        self.generation += 1
        self._since = now
        self._probing = self._passed = self._failed_in_row = 0
        self._window.clear()
        return Transition(before, after, cause, self.generation, now)
