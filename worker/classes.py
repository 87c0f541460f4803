"""Classes of service: which rows wait, which are scored next, and which go first when there are too many. Pure.

- Inside a class the earliest deadline is first.
- Between classes rows are shared by weight (weighted fair queueing: Demers, Keshav and Shenker, SIGCOMM 1989): each
  class has a virtual time, rows served / weight, and the rows of a batch raise the lowest ones to a common level. A
  class that was empty starts at the level of the others, so it saves up nothing.
- The weight of a class grows with the wait of its oldest row, up to the highest class's weight.
- What is above a bound is shed, the lowest class first and in it what is due last, by the class's own policy.

No class starves: while a class waits it gets at least weight / (classes * highest weight) of the rows, give or take the
one row of rounding; and no row stays longer than its class's timeout, whatever is served.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.edf import EarliestFirst, Pick

ShedPolicy = Literal["light", "skip", "dead_letter"]
ShedWhy = Literal["quota", "full", "overload", "timeout"]
"""Why rows were shed. A closed set, since it is a metric label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPolicy:
    """One class of service. The order in the list of classes is its rank, the first being the highest."""

    name: str
    weight: float = 1.0
    """Share of the rows while other classes wait too, relative to their weights."""
    timeout_s: float = 1.0
    """Longest wait of a row; after that it is shed."""
    max_rows: int = 16_384
    """Most rows waiting."""
    max_bytes: int = 8 << 20
    """Most bytes waiting."""
    quota: float = inf
    """Most rows a second that are admitted, with one second's worth of burst."""
    aging_s: float = 1.0
    """Wait of the oldest row that doubles the weight."""
    shed: ShedPolicy = "light"
    """What becomes of shed rows: scored by the light model, skipped with a marker, or dead-lettered."""

    def __post_init__(self) -> None:
        for key in ("weight", "timeout_s", "max_rows", "max_bytes", "quota", "aging_s"):
            value = getattr(self, key)
            if not value > 0 or not (isfinite(value) or key in ("quota", "aging_s")):
                raise ValueError(f"class {self.name}: {key}: {value}: must be a positive number")


class Shed[T](NamedTuple):
    """Rows that will not be scored by the primary engine, and what is to become of them."""

    pick: Pick[T]
    policy: ShedPolicy
    why: ShedWhy


class Classes[T]:
    """Rows waiting in all classes. T is the source of rows (a chunk). Times are seconds of one monotonic clock."""

    def __init__(self, policies: Sequence[ClassPolicy], *, max_rows: int) -> None:
        """`max_rows` bounds all classes together."""
        if not policies:
            raise ValueError("classes: []: at least one class is needed")
        self.policies = tuple(policies)
        self._max_rows = max_rows
        self._queues = [EarliestFirst[T](policy.timeout_s) for policy in policies]
        self._virtual = [0.0] * len(policies)
        self._level = 0.0
        self._tokens = [policy.quota for policy in policies]
        self._refilled = -inf
        self._heaviest = max(policy.weight for policy in policies)

    @property
    def rows(self) -> int:
        return sum(queue.rows for queue in self._queues)

    @property
    def earliest(self) -> float:
        """Earliest due time of all rows, infinity when nothing waits: what a batch must be closed for."""
        return min(queue.earliest for queue in self._queues)

    @property
    def oldest(self) -> float:
        """When the longest waiting row was offered, infinity when nothing waits."""
        return min(queue.oldest for queue in self._queues)

    def offer(
        self, source: T, deadlines: NDArray[np.float64], ranks: int | NDArray[np.intp], row_bytes: float, now: float
    ) -> list[Shed[T]]:
        """Admit row i of `source` with `deadlines[i]` into class `ranks[i]` (or all into one), `row_bytes` each.

        Returns what is shed for it: rows of the offer above a quota, and rows above the bounds of a class or of all.
        """
        self._refill(now)
        shed: list[Shed[T]] = []
        for rank in (ranks,) if isinstance(ranks, int) else np.unique(ranks).tolist():
            rows = np.arange(len(deadlines)) if isinstance(ranks, int) else np.flatnonzero(ranks == rank)
            policy, queue = self.policies[rank], self._queues[rank]
            if len(rows) > self._tokens[rank]:
                admitted = int(self._tokens[rank])
                shed.append(Shed(Pick(source, rows[admitted:]), policy.shed, "quota"))
                rows = rows[:admitted]
            self._tokens[rank] -= len(rows)
            if not queue.rows:
                self._virtual[rank] = max(self._virtual[rank], self._level)
            queue.offer(source, rows, deadlines[rows], row_bytes, now)
            shed += self._shed(rank, queue.rows - policy.max_rows, "full")
            while queue.nbytes > policy.max_bytes:  # again where the rows shed are smaller than the mean
                excess = queue.nbytes - policy.max_bytes
                shed += self._shed(rank, ceil(excess * queue.rows / queue.nbytes), "full")
        return shed + self.shed_to(self._max_rows)

    def shed_to(self, rows: int) -> list[Shed[T]]:
        """Shed until at most `rows` wait (say, what can still be scored in time), the lowest class first."""
        shed: list[Shed[T]] = []
        for rank in reversed(range(len(self.policies))):
            shed += self._shed(rank, self.rows - rows, "overload")
        return shed

    def expire(self, now: float) -> list[Shed[T]]:
        """Shed the rows that have waited for their class's timeout. To be called before `take`."""
        return [
            Shed(pick, self.policies[rank].shed, "timeout")
            for rank, queue in enumerate(self._queues)
            for pick in queue.expire(now)
        ]

    def drop_due(self, limit: float) -> list[Pick[T]]:
        """Remove the rows of all classes that are due at `limit` or before."""
        return [pick for queue in self._queues for pick in queue.drop_due(limit)]

    def take(self, most: int, now: float) -> list[Pick[T]]:
        """The next rows to score, at most `most`."""
        picks: list[Pick[T]] = []
        for rank, count in enumerate(self._shares(min(most, self.rows), now)):
            if count:
                picks += self._queues[rank].take(count)
        return picks

    def _shares(self, rows: int, now: float) -> list[int]:
        """Rows for each class: those with the lowest virtual times are raised to one level."""
        shares = [0] * len(self.policies)
        waits = [rank for rank, queue in enumerate(self._queues) if queue.rows]
        if len(waits) <= 1:  # nothing to share: the usual case, for which all that follows would be too dear
            for rank in waits:
                self._serve(rank, rows, [policy.weight for policy in self.policies], shares)
                self._level = max(self._level, self._virtual[rank])
            return shares
        weights = [self._weight(rank, now) for rank in range(len(self.policies))]
        while rows > 0:
            open_ranks = [rank for rank, queue in enumerate(self._queues) if queue.rows > shares[rank]]
            lowest = min(open_ranks, key=lambda rank: (self._virtual[rank], rank))
            # The water level that `rows` rows reach, then every class up to it as far as its rows last.
            level = self._water(open_ranks, weights, rows)
            served = 0
            for rank in open_ranks:
                ideal = int((level - self._virtual[rank]) * weights[rank] + 1e-9)
                served += self._serve(rank, max(0, min(ideal, self._queues[rank].rows - shares[rank])), weights, shares)
            if not served:  # less than a row for each: the lowest class has the next one
                served = self._serve(lowest, 1, weights, shares)
            rows -= served
        waiting = [self._virtual[r] for r, queue in enumerate(self._queues) if queue.rows > shares[r]]
        self._level = max(self._level, min(waiting) if waiting else max(self._virtual))
        return shares

    def _water(self, ranks: list[int], weights: list[float], rows: int) -> float:
        """Level at which the classes below it have taken `rows` rows together."""
        total = volume = 0.0
        level = inf
        ordered = sorted(ranks, key=lambda rank: self._virtual[rank])
        for rank, above in zip(ordered, [*ordered[1:], None], strict=True):
            total += weights[rank]
            volume += weights[rank] * self._virtual[rank]
            level = (rows + volume) / total
            if above is None or level <= self._virtual[above]:
                break
        return level

    def _serve(self, rank: int, rows: int, weights: list[float], shares: list[int]) -> int:
        shares[rank] += rows
        self._virtual[rank] += rows / weights[rank]
        return rows

    def _weight(self, rank: int, now: float) -> float:
        policy = self.policies[rank]
        age = max(0.0, now - self._queues[rank].oldest)
        return min(self._heaviest, policy.weight * (1 + age / policy.aging_s))

    def _shed(self, rank: int, rows: int, why: ShedWhy) -> list[Shed[T]]:
        return [Shed(pick, self.policies[rank].shed, why) for pick in self._queues[rank].drop_last(rows)]

    def _refill(self, now: float) -> None:
        elapsed = max(0.0, now - self._refilled)
        self._refilled = max(self._refilled, now)
        for rank, policy in enumerate(self.policies):
            if policy.quota < inf:
                self._tokens[rank] = min(policy.quota, self._tokens[rank] + elapsed * policy.quota)


def class_rank(name: bytes | str | None, policies: Sequence[ClassPolicy], default: int) -> int:
    """Index of the class that a header or a field names; `default` when it names none of them."""
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    return next((rank for rank, policy in enumerate(policies) if policy.name == text), default)
