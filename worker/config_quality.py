"""Configuration of what happens under pressure: classes of service, breaker, alarms, segments."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engines import EngineKind
from worker.alarms import AlarmPolicy
from worker.breaker import BreakerPolicy
from worker.classes import ClassPolicy, ShedPolicy
from worker.route import SegmentRule

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
TOPIC_FORM = "1 to 249 letters, digits, '.', '_' and '-', other than '.' and '..'"
OptionalTopic = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{0,249}$", description=TOPIC_FORM)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}$", description="1 to 32 letters, digits, '_' and '-'")]
Part = Annotated[float, Meta(gt=0, lt=1)]


class ClassConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[classes]]: one class of service, the highest first. Without any there is one class that sheds nothing."""

    name: Name
    """What topics (`service_class`) and the records' header `class` call it, for example "L1". Required."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """Share of the rows while other classes wait too, relative to their weights."""
    timeout_ms: Milliseconds = 1_000
    """Longest wait of an event; after that it is shed."""
    max_rows: Annotated[int, Meta(ge=1)] = 16_384
    """Most events of the class waiting in one lane; above, what is due last is shed."""
    max_bytes: Annotated[int, Meta(ge=1)] = 8 << 20
    """The same in bytes; at least `worker.max_event_bytes`."""
    quota: Annotated[float, Meta(ge=0)] = 0.0
    """Most events a second admitted into one lane, with one second of burst; above, they are shed. 0: no limit."""
    aging_ms: Milliseconds = 1_000
    """Wait of the oldest event that doubles the weight, so that no class starves."""
    shed: ShedPolicy = "light"
    """What becomes of shed events: scored by the last engine (topics then need a `fallback`), published without a
    score, or dead-lettered."""

    def policy(self) -> ClassPolicy:
        return ClassPolicy(
            name=self.name,
            weight=self.weight,
            timeout_s=self.timeout_ms / 1000,
            max_rows=self.max_rows,
            max_bytes=self.max_bytes,
            quota=self.quota or float("inf"),
            aging_s=self.aging_ms / 1000,
            shed=self.shed,
        )


ONE_CLASS = ClassPolicy(name="all", timeout_s=1e9, max_rows=1 << 62, max_bytes=1 << 62)
"""The only class where none is configured: what is above a lane's bounds is not polled, and nothing is shed."""


class BreakerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[breaker]: when the primary engine is left alone, and how it comes back."""

    window_ms: Milliseconds = 1_000
    """Time over which failed and slow batches are counted."""
    min_count: Annotated[int, Meta(ge=1)] = 10
    """Batches that a window needs before it says anything."""
    error_part: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Part of failed batches that opens the breaker."""
    consecutive: Annotated[int, Meta(ge=1)] = 3
    """Failed or overdue batches in a row that open it."""
    slow_factor: Annotated[float, Meta(gt=1)] = 1.5
    """Times its normal mean and p99 at which the engine is slow."""
    open_ms: Milliseconds = 250
    """First time without the engine; doubled at each further opening until a calm time."""
    max_open_ms: Milliseconds = 1_000
    """Bound of the doubling; at least `open_ms`."""
    calm_ms: Milliseconds = 10_000
    """Closed for so long, the next opening is a first one again."""
    probes: Annotated[int, Meta(ge=1)] = 3
    """Good batches that close it again. They are shadows: another engine answers for them."""

    def policy(self, budget_s: float) -> BreakerPolicy:
        """For a topic with this budget: a batch that leaves half of it is not slow, whatever is normal."""
        return BreakerPolicy(
            never_slow_s=max(budget_s / 2, 0.010),
            window_s=self.window_ms / 1000,
            min_count=self.min_count,
            error_part=self.error_part,
            consecutive=self.consecutive,
            slow_factor=self.slow_factor,
            open_s=self.open_ms / 1000,
            max_open_s=self.max_open_ms / 1000,
            calm_s=self.calm_ms / 1000,
            probes=self.probes,
        )


class AlarmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[alarms]: limits of each model's latencies, misses, errors and dead letters, and who is told."""

    topic: OptionalTopic = ""
    """Topic for raised and cleared alarms, in JSON; it must exist. Empty: they are only logged and counted."""
    window_ms: Milliseconds = 1_000
    """Time over which latencies, misses, errors and dead letters are taken."""
    min_rows: Annotated[int, Meta(ge=1)] = 100
    """Events that a window needs to raise anything."""
    factor: Annotated[float, Meta(gt=1)] = 1.5
    """Times the normal p99 and mean that raise."""
    miss_part: Part = 0.01
    """Part of events scored after their deadline that raises."""
    error_part: Part = 0.05
    """Part of events that the primary engine failed on that raises."""
    dead_letter_part: Part = 0.05
    """Part of records that became dead letters that raises."""
    queue_age_ms: Milliseconds = 100
    """Wait of the oldest event that raises."""
    raise_ms: Milliseconds = 100
    """How long a limit must be exceeded."""
    clear_ms: Milliseconds = 1_000
    """How long it must be kept again."""
    webhook_token_file: str = ""
    """File with the bearer token that Alertmanager sends to POST /alarms. Empty: the webhook is off."""

    def policy(self) -> AlarmPolicy:
        return AlarmPolicy(
            window_s=self.window_ms / 1000,
            min_rows=self.min_rows,
            factor=self.factor,
            miss_part=self.miss_part,
            error_part=self.error_part,
            dead_letter_part=self.dead_letter_part,
            queue_age_s=self.queue_age_ms / 1000,
            raise_s=self.raise_ms / 1000,
            clear_s=self.clear_ms / 1000,
        )

    def webhook_tokens(self) -> list[str]:
        """The tokens that POST /alarms lets in; none where the webhook is off.

        Raises `ConfigError` when the file cannot be read or is empty.
        """
        from worker.security import webhook_tokens

        return webhook_tokens(self)


class SegmentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment of a topic's events with a model of its own, by a category of theirs: `values` or `fewer_than`."""

    name: Name
    """Stands in each score's reason: "segment:<name>". Required."""
    model: str
    """Its model package; the spec must have the same inputs as the topic's. Required."""
    tensor: str
    """Model input that holds the feature. Required."""
    engine: EngineKind = "light"
    """Engine for the segment's model."""
    column: Annotated[int, Meta(ge=0)] = 0
    """Column of the feature in that input."""
    values: tuple[int, ...] = ()
    """Ids (as in the input) that belong to the segment."""
    fewer_than: Annotated[float, Meta(ge=0)] = 0.0
    """Or: ids with fewer events than this in the last days belong to it, the long tail."""

    @property
    def engine_name(self) -> str:
        """As it stands in the scores."""
        return f"{self.name}:{self.engine}"

    def rule(self) -> SegmentRule:
        return SegmentRule(
            name=self.name,
            engine=self.engine_name,
            tensor=self.tensor,
            column=self.column,
            values=frozenset(self.values) if self.values else None,
            fewer_than=self.fewer_than or None,
        )
