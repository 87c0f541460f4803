"""From the times an event carries to one absolute monotonic deadline per row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from schemas.dead_letter import Header

DEADLINE_HEADER = "deadline_ms"
"""Record header with the deadline in ASCII milliseconds, absolute or relative as the topic's rule says."""

MAX_DEADLINE_MS = 8.64e15
"""As in events' own fields; what is left of any deadline up to it can be published as an integer."""

DeadlineBase = Literal["timestamp", "arrival"]
EventDeadline = Literal["absolute", "relative", "ignore"]


@dataclass(frozen=True, slots=True)
class DeadlineRule:
    """How one topic's deadlines are made.

    The deadline is the earliest of: the base (record timestamp, or arrival) plus the budget; the event's own deadline
    field; the `deadline_ms` header. "absolute" reads the last two as milliseconds since the epoch, "relative" as
    milliseconds after the base, "ignore" not at all. A timestamp in the future (a producer's clock ahead of ours) is
    taken as now, so a skewed clock can shorten a budget but never stretch it.
    """

    budget_ms: float
    base: DeadlineBase = "timestamp"
    event_deadline: EventDeadline = "absolute"

    def deadlines(
        self,
        timestamps_ms: NDArray[np.float64],
        own_deadlines_ms: NDArray[np.float64],
        *,
        now: float,
        wall_ms: float,
    ) -> NDArray[np.float64]:
        """Deadline of each row in monotonic seconds, shape [n].

        `timestamps_ms` are the records' timestamps (negative: none), `own_deadlines_ms` the event's field or header
        (NaN: none), `now` and `wall_ms` the two clocks read at the same moment.
        """
        age_ms = np.zeros(len(timestamps_ms))
        if self.base == "timestamp":
            np.subtract(wall_ms, timestamps_ms, out=age_ms)
            age_ms[(timestamps_ms < 0.0) | (age_ms < 0.0)] = 0.0
        left_ms = self.budget_ms - age_ms
        if self.event_deadline != "ignore":
            own_left_ms = own_deadlines_ms - (wall_ms if self.event_deadline == "absolute" else age_ms)
            np.fmin(left_ms, own_left_ms, out=left_ms)
        return np.asarray(now + left_ms / 1000.0)


def header_deadline_ms(headers: Sequence[Header]) -> float:
    """The `deadline_ms` header as a number, NaN where it is absent, no number or no time."""
    for name, value in headers:
        if name == DEADLINE_HEADER and value is not None:
            try:
                deadline = float(value)
            except ValueError:
                return float("nan")
            return deadline if abs(deadline) <= MAX_DEADLINE_MS else float("nan")
    return float("nan")
