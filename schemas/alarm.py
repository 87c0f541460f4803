"""An alarm: the service tells that a limit began or ceased to be exceeded."""

from typing import Literal

import msgspec


class Alarm(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One transition. In msgpack an array in this order, in JSON an object with these names."""

    state: Literal["raised", "cleared"]
    cause: str
    """What is exceeded, for instance latency_p99, latency_mean, errors, dead_letters, device_lost."""
    topic: str
    """Input topic that it is about."""
    observed: float
    limit: float
    """`observed` was above it when raised. Both are in the unit of the cause: milliseconds, or a part of the events."""
    time_ms: int
    generation: int
    """Counts what the worker has told of the topic, so that late and repeated alarms are recognised."""


class JsonAlarm(Alarm, array_like=False, frozen=True, gc=False):
    """`Alarm` with named fields, for JSON."""
