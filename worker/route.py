"""Which engine scores which rows of a batch: by what is left of their budget, by segment, and by what is warm. Pure.

Rows that are late go by the topic's late policy. Rows of a segment with a model of its own go there. The others go to
the first engine of the chain that is usable and quick enough for them; the last engine takes all that is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.rows import Tensors
from worker.activity import Activity
from worker.service_time import ServiceTime

OWN_REASONS: Final = ("late", "shed", "segment")
"""What a reason begins with where no engine is to blame; else it is the engine's name. No segment is called so, since
the name of its engine begins with its own."""

LatePolicy = Literal["score", "light", "skip", "dead_letter"]
"""Late rows: scored like the others, by the last engine of the chain only, skipped with a marker, or dead-lettered."""


@dataclass(slots=True, frozen=True)
class Candidate:
    """One engine as it stands now. The order in the chain is the order of preference."""

    engine: str
    service: ServiceTime
    warm: bool = True
    """False until its first batches have been run: cold engines get no rows, except as the last one."""
    refused: str | None = None
    """Why its breaker refuses it, None when it may be used."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SegmentRule:
    """Rows that have an engine of their own, chosen by one categorical feature."""

    name: str
    engine: str
    tensor: str
    """Model input that holds the feature, an integer one."""
    column: int = 0
    """Column of the tensor, where it has columns."""
    values: frozenset[int] | None = None
    """Indices (as in the tensor) that belong to the segment."""
    fewer_than: float | None = None
    """Ids with fewer events than this lately belong to the segment: the long tail."""

    def __post_init__(self) -> None:
        if (self.values is None) == (self.fewer_than is None):
            raise ValueError(f"segment {self.name}: exactly one of values and fewer_than is needed")

    def ids(self, tensors: Tensors) -> NDArray[np.generic]:
        """The feature's indices, [n]. Raises `ValueError` where the model has no such column."""
        tensor = tensors.get(self.tensor)
        columns = () if tensor is None else tensor.shape[1:]
        if tensor is None or len(columns) > 1 or tensor.dtype.kind not in "iu" or self.column >= (*columns, 1)[0]:
            raise ValueError(
                f"segment {self.name}: tensor {self.tensor!r} column {self.column}: the model has no such integer"
                f" column; it has {', '.join(f'{name} {t.dtype}{list(t.shape[1:])}' for name, t in tensors.items())}"
            )
        return tensor[:, self.column] if columns else tensor


@dataclass(slots=True, frozen=True, kw_only=True)
class RoutePolicy:
    above_s: Mapping[str, float] = field(default_factory=dict)
    """Engine -> budget that a row must have more of, in seconds. Where not given, the predicted service time of the
    batch and what comes after it decide. The ads rule "budget above 50 ms: deep model" is {"trt": 0.050}."""
    late: LatePolicy = "score"
    segments: tuple[SegmentRule, ...] = ()


class Route(NamedTuple):
    """Rows that go the same way."""

    rows: NDArray[np.int64]
    """Indices in the batch, ascending."""
    engine: str | None
    """None: not scored but skipped or dead-lettered, as `reason` ("late:skip", "late:dead_letter") says."""
    reason: str | None
    """Why it is not the first engine of the chain, None when it is."""


class Router:
    """Splits batches. Routes of one batch are disjoint and together they hold every row."""

    def __init__(self, policy: RoutePolicy, activity: Mapping[str, Activity] | None = None) -> None:
        """`activity`: segment name -> counts of its ids, one for each segment with `fewer_than`."""
        self.policy = policy
        self._activity = dict(activity or {})
        for rule in policy.segments:
            if rule.fewer_than is not None and rule.name not in self._activity:
                raise ValueError(f"segment {rule.name}: fewer_than needs the activity of its ids")

    def split(
        self,
        chain: Sequence[Candidate],
        deadlines: NDArray[np.float64],
        tensors: Tensors,
        now: float,
        *,
        after_s: float = 0.0,
        least_s: float = 0.0,
    ) -> list[Route]:
        """Routes of a batch with `deadlines` [n] (monotonic seconds) and `tensors`. `chain` must not be empty.

        `after_s`: the time between the scores and the deadline that is needed for the rest.
        `least_s`: what an answer takes at least. Rows with less than that left count as late where late rows are not
        scored: they would only make others late.
        """
        remaining = deadlines - now
        left: NDArray[np.int64] = np.arange(len(deadlines))
        routes: list[Route] = []
        last = chain[-1].engine
        if self.policy.late != "score" and len(left):
            late = remaining <= (0.0 if self.policy.late == "light" else least_s)
            engine = last if self.policy.late == "light" else None
            left = self._part(routes, left, late, engine, f"late:{self.policy.late}")
        for rule in self.policy.segments:
            own = next((c for c in chain if c.engine == rule.engine and c.warm and c.refused is None), None)
            if own is not None and len(left):
                left = self._part(
                    routes, left, self._inside(rule, tensors, now)[left], own.engine, f"segment:{rule.name}"
                )
        named = {rule.engine for rule in self.policy.segments}
        reason: str | None = None
        for candidate in chain:
            if not len(left):
                break
            if candidate.engine == last:
                routes.append(Route(left, last, reason))
                break
            if candidate.engine in named:  # a segment's own model is not for the others
                continue
            if candidate.refused is not None or not candidate.warm:
                refused = "cold" if not candidate.warm else f"breaker:{candidate.refused}"
                reason = reason or f"{candidate.engine}:{refused}"
                continue
            above = self.policy.above_s.get(candidate.engine)
            if above is not None:
                quick_enough = remaining[left] > above
            else:
                predicted = candidate.service.predict(len(left)) + after_s
                # A late row cannot be saved by a quicker engine, so it has the better score.
                quick_enough = (remaining[left] > predicted) | (remaining[left] <= 0)
            left = self._part(routes, left, quick_enough, candidate.engine, reason)
            reason = reason or f"{candidate.engine}:budget"
        return routes

    def _part(
        self,
        routes: list[Route],
        left: NDArray[np.int64],
        chosen: NDArray[np.bool_],
        engine: str | None,
        reason: str | None,
    ) -> NDArray[np.int64]:
        if chosen.any():
            routes.append(Route(left[chosen], engine, reason))
            return left[~chosen]
        return left

    def _inside(self, rule: SegmentRule, tensors: Tensors, now: float) -> NDArray[np.bool_]:
        ids = rule.ids(tensors)
        if rule.fewer_than is not None:
            return np.asarray(self._activity[rule.name].counts(ids, now) < rule.fewer_than)
        return np.isin(ids, list(rule.values or ()))
