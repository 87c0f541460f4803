"""An alarm: the service tells that a limit began or ceased to be exceeded."""

from typing import Literal

import msgspec


class Alarm(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One transition. In msgpack an array in this order, in JSON an object with these names."""

    state: Literal["raised", "cleared"]
    cause: str
    """What is exceeded, for instance latency_p99, latency_mean, errors, dead_letters, device_lost."""
    model: str
    lane: int | None
    """None when the alarm is about the model in all lanes."""
    observed: float
    limit: float
    """`observed` was above it when raised. Both are in the unit of the cause: milliseconds, or a part of the events."""
    time_ms: int
    generation: int
    """Grows with each transition of one breaker, so that late and repeated alarms are recognised."""


class JsonAlarm(Alarm, array_like=False, frozen=True, gc=False):
    """`Alarm` with named fields, for JSON."""
