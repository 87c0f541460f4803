"""A trace as it is played: at a speed, from a wall clock's time on, with the truth about each event's deadline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.package import Package
from schemas.decoder import Decoder
from worker.classes import ClassPolicy, class_rank
from worker.config import TopicConfig
from worker.deadline import DeadlineRule, header_deadline_ms
from worker.replay.broker import Arrival
from worker.replay.retime import Retimer
from worker.replay.trace import Trace, TraceRecord
from worker.topic import CLASS_HEADER


@dataclass(frozen=True, slots=True)
class Script:
    """Events are numbered in the order of partition and offset. Seconds count from the beginning of the replay."""

    partitions: list[list[Arrival]]
    arrives: NDArray[np.float64]
    """When each event comes."""
    due: NDArray[np.float64]
    """Its deadline by the producers' clocks, which is what its producer meant."""
    ranks: NDArray[np.int64]
    """Its class of service."""


def script(
    trace: Trace, speed: float, start_ms: float, config: TopicConfig, classes: Sequence[ClassPolicy], package: Package
) -> Script:
    """Play `trace` `speed` times as fast as it was recorded; second 0 is `start_ms` of the producers' clocks.

    An event that was older than its partition's newest one at its arrival is as much older now. Absolute deadlines in
    events and headers move along.
    """
    retimer = Retimer(package.spec, config.format)
    partitions: list[list[Arrival]] = [[] for _ in range(trace.partitions)]
    first_ms = trace.start_ms
    newest = [first_ms] * trace.partitions
    for record in trace.records:
        came_ms = newest[record.partition] = max(newest[record.partition], record.timestamp_ms)
        at = (came_ms - first_ms) / 1000.0 / speed
        timestamp = int(start_ms + at * 1000.0 - (came_ms - record.timestamp_ms))
        shift = timestamp - int(record.timestamp_ms) if config.event_deadline == "absolute" else 0
        partition = partitions[record.partition]
        partition.append(_arrival(record, at, len(partition), timestamp, shift, retimer))
    arrivals = [arrival for partition in partitions for arrival in partition]
    ranks = [_rank(arrival, classes, config) for arrival in arrivals]
    return Script(
        partitions,
        np.array([arrival.at for arrival in arrivals], dtype=np.float64),
        _due(arrivals, start_ms, config, package),
        np.array(ranks, dtype=np.int64),
    )


def _arrival(record: TraceRecord, at: float, offset: int, timestamp: int, shift_ms: int, retimer: Retimer) -> Arrival:
    value, headers = retimer.value(record.value, shift_ms), retimer.headers(record.headers, shift_ms)
    return Arrival(at, offset, timestamp, record.key, value, headers)


def _rank(arrival: Arrival, classes: Sequence[ClassPolicy], config: TopicConfig) -> int:
    default = class_rank(config.service_class, classes, 0)
    named = next((value for name, value in arrival.headers if name == CLASS_HEADER), None)
    return class_rank(named, classes, default)


def _due(arrivals: list[Arrival], start_ms: float, config: TopicConfig, package: Package) -> NDArray[np.float64]:
    if not arrivals:
        return np.empty(0)
    own = np.array([header_deadline_ms(arrival.headers) for arrival in arrivals])
    decoder = Decoder(package.spec, config.format, max_event_bytes=1 << 30, tables=package.open_tables())
    rows = decoder.decode([arrival.value for arrival in arrivals])
    own[rows.positions] = np.fmin(own[rows.positions], rows.deadline_ms)
    if config.deadline == "arrival":
        stamps = np.array([arrival.at * 1000.0 for arrival in arrivals])
    else:
        stamps = np.array([arrival.timestamp - start_ms for arrival in arrivals], dtype=np.float64)
    # Counted from the earliest one, since a negative timestamp would be none at all; and seen from the latest one,
    # since the rule takes a timestamp of the future for now.
    first_ms = float(stamps.min())
    stamps -= first_ms
    last_ms = float(stamps.max())
    if config.event_deadline == "absolute":
        own -= start_ms + first_ms
    rule = DeadlineRule(config.budget_ms, "timestamp", config.event_deadline)
    return rule.deadlines(stamps, own, now=last_ms / 1000.0, wall_ms=last_ms) + first_ms / 1000.0
