"""An open loop of events offered to whatever runs, and how long each one's score took."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.score import Score
from tests.bench.bed import Bed
from tests.kafka.client import Client
from tests.kafka.process import Process, wait_until


@dataclass(frozen=True)
class Offered:
    """What a load generator sent; times in milliseconds."""

    first_due: int
    last_due: int
    sent_p99_ms: float
    """From the intended send time to the acknowledgement of the event: before the worker could begin."""


@dataclass(frozen=True)
class Latency:
    """Added by the worker: from the broker's append of the event to its append of the score, in whole milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    missed: float
    """Share of the events whose scores came after the budget."""
    events: int
    primary: float
    """Share of the events that the primary engine scored."""
    whole_p99_ms: float
    """From the intended send time to the append of the score."""
    sent_p99_ms: float
    """As in `Offered`."""


def save_events(file: Path, events: list[Any], due_field: int | str) -> Path:
    """For `offer`: events as lists or dicts; item `due_field` becomes the intended send time of each."""
    file.write_bytes(msgspec.msgpack.encode((due_field, events)))
    return file


def offer(bed: Bed, topic: str, scores: str, events: Path, rate: float, seconds: float) -> Offered:
    """Send `rate` events a second, whatever comes back, and wait until all are scored."""
    command = [
        *("taskset", "-c", bed.cpus.load, sys.executable, "-m", "tests.bench.load"),
        *(bed.kafka.bootstrap, topic, str(events), str(rate), str(seconds)),
    ]
    load = Process(command, bed.directory / f"load-{topic}-{rate:.0f}.log")
    try:
        assert load.wait(seconds + 60) == 0, load.tail()
        first, last, sent_p99_ms = load.tail().split()[-3:]
    finally:
        load.kill()
    wait_until(lambda: bed.kafka.size(scores) >= bed.kafka.size(topic), f"a score for each event of {topic}")
    return Offered(int(first), int(last), float(sent_p99_ms))


Waits = NDArray[np.int64]
"""[n, 4], a row for each score: intended send time of its event, milliseconds from the broker's append of the event to
that of the score, milliseconds from the intended send time to there, 1 when the primary engine scored it."""


def waits(kafka: Client, topic: str, scores: str, due: Callable[[Score], Any]) -> Waits:
    """Of everything in both topics, whose timestamps are LogAppendTime; `due` finds the intended send time."""
    decode = msgspec.msgpack.Decoder(Score).decode
    appended = {(record.partition, record.offset): record.timestamp for record in kafka.read_all(topic)}
    rows = [
        (due(score), record.timestamp - appended[score.partition, score.offset], record.timestamp, score.reason is None)
        for record in kafka.read_all(scores)
        if record.value is not None
        for score in (decode(record.value),)
    ]
    assert len(rows) == len(appended), f"every event is scored once: {len(rows)} scores of {len(appended)} events"
    table = np.array(rows, dtype=np.int64)
    table[:, 2] -= table[:, 0]
    return table


def latency(table: Waits, offered: Offered, budget_ms: float) -> Latency:
    """Of one open loop, without its first fifth: connections, the first batches and caches are in it."""
    due = table[:, 0]
    start = offered.first_due + 0.2 * (offered.last_due - offered.first_due)
    _, added, whole, primary = table[(due >= start) & (due <= offered.last_due)].T
    p50, p99, p999 = np.percentile(added, (50, 99, 99.9))
    return Latency(
        float(p50),
        float(p99),
        float(p999),
        missed=float((added > budget_ms).mean()),
        events=len(added),
        primary=float(primary.mean()),
        whole_p99_ms=float(np.percentile(whole, 99)),
        sent_p99_ms=offered.sent_p99_ms,
    )
