"""The score of one event, as it is published."""

import msgspec

from schemas.rows import EventKey


class Score(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One score. In msgpack an array in this order, in JSON an object with these names.

    `topic`, `partition` and `offset` are the scored record's coordinates: together they identify the score, so a
    consumer that must not see duplicates after a crash drops those it has seen.
    """

    key: EventKey
    score: float | None
    """None where the event was skipped: `engine` is then "none" and `reason` says why."""
    model: str
    version: str
    engine: str
    """Engine that produced the score: trt, ort, trees, light or constant, or a segment's "<segment>:<engine>"."""
    reason: str | None
    """Why it was not the primary engine, None when it was: "<engine>:error", ":hung", ":overdue", ":not_finite",
    ":device_lost", ":busy", ":budget", ":cold" or ":breaker:<state>", "late:<policy>", "shed:<why>",
    "segment:<name>"."""
    topic: str
    partition: int
    offset: int
    event_time_ms: int
    """When the event happened: its own time field, else the record's timestamp. Milliseconds since the epoch."""
    scored_time_ms: int
    late: bool
    """True when the score was ready after the event's deadline."""
    remaining_ms: int
    """Budget that was left when the score was ready, negative when late."""


class JsonScore(Score, array_like=False, frozen=True, gc=False):
    """`Score` with named fields, for JSON."""
