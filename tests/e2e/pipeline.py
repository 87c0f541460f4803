"""One input topic with its score and dead-letter topics, the records that went in and what came out."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from schemas.event import JsonTippingEvent, TippingEvent
from schemas.score import JsonScore, Score
from tests.kafka.client import Client, Message, Record
from tests.kafka.process import wait_until

Position = tuple[int, int]
"""(partition, offset) of an input record."""


@dataclass
class Pipeline:
    """Creates its topics. `options` are those of the topic in the worker's configuration."""

    kafka: Client
    name: str
    model: Path
    partitions: int = 2
    options: Mapping[str, object] = field(default_factory=dict)
    score_partitions: int | None = None
    max_message_bytes: int = 1 << 20
    group: str = ""

    def __post_init__(self) -> None:
        self.group = self.group or self.name
        self.scores_topic, self.dead_topic = f"{self.name}.scores", f"{self.name}.dead"
        self.kafka.create_topic(self.name, self.partitions, max_message_bytes=self.max_message_bytes)
        self.kafka.create_topic(self.scores_topic, self.score_partitions or self.partitions)
        self.kafka.create_topic(self.dead_topic, self.partitions)

    @property
    def topic(self) -> dict[str, object]:
        # A budget that no busy machine exceeds: lateness is not what most tests are about.
        return {"name": self.name, "model": str(self.model), "budget_ms": 600_000, "fallback": [], **self.options}

    def produce(self, values: Iterable[bytes | Record | None]) -> list[Position]:
        records = (value if isinstance(value, Record) else Record(value) for value in values)
        return self.kafka.produce(self.name, records)

    def scores(self) -> list[Score]:
        """All scores so far, by output partition and offset."""
        return [self.decode(message) for message in self.kafka.read_all(self.scores_topic)]

    def decode(self, message: Message) -> Score:
        assert message.value is not None
        if self.options.get("format") == "json":
            return msgspec.json.decode(message.value, type=JsonScore)
        return msgspec.msgpack.decode(message.value, type=Score)

    def dead_letters(self) -> list[Message]:
        return self.kafka.read_all(self.dead_topic)

    def scored(self) -> int:
        """Score records so far, duplicates included."""
        return self.kafka.size(self.scores_topic)

    def committed(self) -> dict[int, int]:
        return self.kafka.committed(self.group, self.name)

    def finished(self) -> bool:
        """Whether everything in the input topic is committed."""
        ends = {number: offset for number, offset in self.kafka.end_offsets(self.name).items() if offset}
        return self.committed() == ends

    def wait_finished(self, timeout_s: float = 60.0) -> None:
        def what() -> str:
            return f"{self.name} is finished: committed {self.committed()} of {self.kafka.end_offsets(self.name)}"

        try:
            wait_until(self.finished, "everything is committed", timeout_s, every_s=0.05)
        except AssertionError:
            raise AssertionError(f"not within {timeout_s} s: {what()}, {self.scored()} scores") from None


def positions(scores: Iterable[Score]) -> Counter[Position]:
    """How often each input record was scored."""
    return Counter((score.partition, score.offset) for score in scores)


def configuration(
    pipelines: Sequence[Pipeline],
    *,
    kafka: Mapping[str, object] | None = None,
    worker: Mapping[str, object] | None = None,
    **sections: Mapping[str, object] | Sequence[Mapping[str, object]],
) -> dict[str, Mapping[str, object] | Sequence[Mapping[str, object]]]:
    """A worker's configuration for these pipelines, which share their group. `sections` are further ones."""
    first = pipelines[0]
    # Short enough that a killed member is missed soon, long enough for a machine under load.
    timing = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}
    return {
        "kafka": {"bootstrap_servers": first.kafka.bootstrap, "group_id": first.group, **timing, **(kafka or {})},
        "topics": [pipeline.topic for pipeline in pipelines],
        "worker": dict(worker or {}),
        **sections,
    }


def tips(count: int, seed: int = 0, *, features: int = 32) -> list[TippingEvent]:
    """Tipping events of now, all their numbers whole and below 16 (see `reference.fingerprint_package`)."""
    rng = random.Random(seed)
    now = time.time_ns() // 1_000_000
    numbers = np.random.default_rng(seed).integers(0, 16, (count, features)).astype("<f4")
    return [
        TippingEvent(
            event_id=f"tip-{seed}-{index}",
            room_id=rng.randrange(1 << 40),
            streamer_id=rng.randrange(1 << 40),
            viewer_id=rng.randrange(1 << 40),
            gift_id=rng.randrange(1000),
            gift_count=rng.randrange(1, 16),
            price=float(rng.randrange(16)),
            combo=rng.randrange(16),
            time_ms=now,
            deadline_ms=None,
            features=numbers[index].tobytes(),
        )
        for index in range(count)
    ]


def encode(event: TippingEvent, format: str = "msgpack") -> bytes:
    if format == "msgpack":
        return msgspec.msgpack.encode(event)
    return msgspec.json.encode(JsonTippingEvent(*(getattr(event, name) for name in event.__struct_fields__)))
