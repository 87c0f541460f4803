"""The demo's events: tips of a live room in msgpack and ad events in JSON, at an open-loop rate."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.train.streams import ads, tips
from schemas.encoder import Encoder
from schemas.samples import rows
from schemas.spec import builtin
from worker.cli.openloop import OpenLoop

TICK_S = 0.004
ENDLESS = 1 << 60


@dataclass(frozen=True, slots=True)
class Source:
    """Events of one topic. `value(due_ms)` is the next one, due at that time (milliseconds since the epoch)."""

    topic: str
    sample: str
    format: str
    value: Callable[[int], bytes]


def live_room(topic: str) -> Source:
    """Tips with the columns of a live room's gift log; the event's own time is when it is due."""
    encoder = Encoder(builtin("tipping"), "msgpack")
    # The seed of the trainer: the same viewers and streamers, so that the model knows them.
    stream = tips(ENDLESS, seed=0)

    def value(due_ms: int) -> bytes:
        event, _ = next(stream)
        return encoder.encode(event | {"time_ms": due_ms})

    return Source(topic, "tipping", "msgpack", value)


def criteo(topic: str, file: Path) -> Source:
    """The rows of a public ad log over and over; they have no time, so that the record's timestamp counts."""
    encoder = Encoder(builtin("criteo"), "json")
    values = itertools.cycle([encoder.encode(row) for row in rows(file)])
    return Source(topic, "criteo", "json", lambda due_ms: next(values))


def ad_requests(topic: str) -> Source:
    """Made-up ad requests with behaviour sequences, where the public rows are not at hand."""
    encoder = Encoder(builtin("ad"), "json")
    stream = ads(ENDLESS, seed=0)

    def value(due_ms: int) -> bytes:
        event, _ = next(stream)
        return encoder.encode(event | {"time_ms": due_ms})

    return Source(topic, "ad", "json", value)


@dataclass(slots=True)
class Sent:
    """What went out on one topic. `bytes` counts values."""

    events: int = 0
    acknowledged: int = 0
    bytes: int = 0
    behind_s: float = 0.0


async def send(
    source: Source, producer: Any, partitions: int, rate: float, most_bytes: int, stop: asyncio.Event, sent: Sent
) -> None:
    """Send until `stop` or `most_bytes`. Event times are whole milliseconds, so that nothing is lost in a score's."""

    def settled(future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            sent.acknowledged += 1

    schedule = OpenLoop(time.time(), rate)
    while not stop.is_set() and sent.bytes < most_bytes:
        now = time.time()
        for index in range(sent.events, schedule.due(now)):
            due_ms = int(schedule.intended(index) * 1000)
            value = source.value(due_ms)
            future = await producer.send(source.topic, value, partition=index % partitions, timestamp_ms=due_ms)
            future.add_done_callback(settled)
            sent.events += 1
            sent.bytes += len(value)
            sent.behind_s = max(sent.behind_s, now - due_ms / 1000)
        await asyncio.sleep(max(TICK_S, schedule.intended(sent.events) - time.time()))
