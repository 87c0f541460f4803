"""Made-up traffic of a model's events: a rate, bursts, classes of service. Deterministic for a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from schemas.encoder import Encoder
from schemas.event import BUILTIN_EVENTS
from schemas.spec import FeatureSpec, ModelSpec
from schemas.wire import Format
from worker.replay.trace import Trace, TraceRecord

START_MS: Final = 1_760_000_000_000.0
POOL: Final = 256
"""Distinct events; they are sent over and over."""
MAX_EVENTS: Final = 10_000_000
"""All are made before the first is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    rate: float
    """Events a second."""
    seconds: float
    bursts: Sequence[tuple[float, float, float]] = ()
    """(from second, to second, times the rate)."""
    classes: Mapping[str, float] = field(default_factory=dict)
    """Class of service -> its part of the events; none: events without a class."""
    partitions: int = 4
    bad_part: float = 0.0
    """Part of the events that no decoder can read."""
    poisson: bool = True
    """Independent arrivals; else evenly spaced ones."""
    seed: int = 0


def make(traffic: Traffic, topic: str, spec: ModelSpec, format: Format) -> Trace:
    """Events of `spec`, with a class in the record's header `class`. Raises `ValueError` for too many."""
    rng = np.random.default_rng(traffic.seed)
    times = _times(traffic, rng)
    pool = _events(spec, format, rng)
    partitions = rng.integers(0, traffic.partitions, len(times)).tolist()
    names = list(traffic.classes)
    parts = np.array([traffic.classes[name] for name in names], dtype=np.float64)
    classes = rng.choice(len(names), len(times), p=parts / parts.sum()).tolist() if names else [None] * len(times)
    bad = (rng.random(len(times)) < traffic.bad_part).tolist()
    headers = {index: (("class", name.encode()),) for index, name in enumerate(names)}
    records = [
        TraceRecord(
            partition,
            START_MS + at * 1000.0,
            b"%d" % number,
            b"\xff" if spoilt else pool[number % len(pool)],
            () if rank is None else headers[rank],
        )
        for number, (at, partition, rank, spoilt) in enumerate(
            zip(times.tolist(), partitions, classes, bad, strict=True)
        )
    ]
    return Trace(topic, traffic.partitions, records)


def _times(traffic: Traffic, rng: np.random.Generator) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Seconds at which events come: a unit-rate process through the inverse of the expected count."""
    edges = sorted(
        {0.0, traffic.seconds, *(t for burst in traffic.bursts for t in burst[:2] if 0 < t < traffic.seconds)}
    )
    rates = [
        traffic.rate * float(np.prod([times for start, stop, times in traffic.bursts if start <= edge < stop]))
        for edge in edges[:-1]
    ]
    expected = np.concatenate(([0.0], np.cumsum(np.diff(edges) * rates)))
    if not expected[-1] <= MAX_EVENTS:
        raise ValueError(f"more than {MAX_EVENTS:,} events; make the rate, the bursts or the time smaller")
    if traffic.poisson:
        counts = np.sort(rng.random(rng.poisson(expected[-1]))) * expected[-1]
    else:
        counts = np.arange(int(expected[-1])) + 0.5
    return np.asarray(np.interp(counts, expected, edges))


def _events(spec: ModelSpec, format: Format, rng: np.random.Generator) -> list[bytes]:
    encoder = Encoder(spec, format)
    builtin = BUILTIN_EVENTS.get(spec.event)
    events = []
    for number in range(POOL):
        row: dict[str, object] = {}
        if builtin is not None:
            for own in msgspec.structs.fields(builtin.type):
                if own.name != builtin.deadline:
                    row[own.name] = b"" if own.name in builtin.blobs else str(number) if own.type is str else 1
            row[builtin.time] = START_MS
        elif spec.key is not None:
            row[spec.key] = str(number)
        row |= {feature.field: _value(feature, rng) for feature in spec.features}
        events.append(encoder.encode(row))
    return events


def _value(feature: FeatureSpec, rng: np.random.Generator) -> object:
    """A value that the feature accepts."""
    if feature.vocabulary is not None:
        picked = [feature.vocabulary[i] for i in rng.integers(0, len(feature.vocabulary), feature.size)]
    elif feature.is_category:
        picked = rng.integers(0, feature.ids or feature.buckets or 1, feature.size).tolist()
    else:
        low = 0.0 if feature.min is None else float(feature.min)
        high = low + 100.0 if feature.max is None else float(feature.max)
        # Whole where that is in range, since the event's own field may be an integer.
        numbers = np.maximum(np.floor(rng.uniform(low, max(low, high), feature.size)), low)
        picked = numbers.tolist() if feature.dtype == "float32" else numbers.astype(np.int64).tolist()
    if not feature.shape:
        return picked[0]
    if feature.encoding == "list" and len(feature.shape) > 1:
        return np.array(picked, dtype=object).reshape(feature.shape).tolist()
    return picked
