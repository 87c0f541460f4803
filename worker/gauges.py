"""What a worker's gauges read at each scrape."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from engines.cache import EngineCache
from worker.breaker import State
from worker.metrics import Metrics, Sample
from worker.topic import Topic

BREAKER_STATES: Final = (State.CLOSED, State.HALF_OPEN, State.OPEN)


def watch(
    metrics: Metrics, topics: Mapping[str, Topic], engines: EngineCache, lag: Callable[[], Iterable[Sample]]
) -> None:
    """Add them all. `topics` and `engines` may be filled later; `lag` is by (topic, partition)."""
    metrics.sample(
        "scorelane_held_records",
        "Records between taking in and acknowledgement, by lane. At worker.inbox_rows: the lane is full.",
        ["lane"],
        lambda: [((lane.name,), float(lane.held[0])) for topic in topics.values() for lane in topic.lanes],
    )
    metrics.sample(
        "scorelane_held_bytes",
        "The same in bytes.",
        ["lane"],
        lambda: [((lane.name,), float(lane.held[1])) for topic in topics.values() for lane in topic.lanes],
    )
    metrics.sample(
        "scorelane_unacknowledged_seconds",
        "How long the brokers have acknowledged nothing of what a lane has sent, 0 while nothing waits for them. Above"
        " 5 the worker is not ready, at worker.publish_timeout_ms it ends.",
        ["lane"],
        lambda: [((lane.name,), lane.unacknowledged_s) for topic in topics.values() for lane in topic.lanes],
    )
    metrics.sample(
        "scorelane_weights_bytes",
        "Device memory of the weights of each loaded engine. Their sum is bounded by worker.max_weights_bytes.",
        ["engine", "model"],
        lambda: _weights(engines),
    )
    metrics.sample(
        "scorelane_breaker",
        "State of each lane's breaker: 0 closed, 1 half open, 2 open (a fallback engine answers).",
        ["lane", "engine"],
        lambda: [
            ((lane, engine), float(BREAKER_STATES.index(state)))
            for topic in topics.values()
            for engine, breakers in topic.chain.breakers.items()
            for lane, state in breakers.states()
        ],
    )
    metrics.sample(
        "scorelane_lag_records",
        "Records behind the end of an assigned partition. Grows: add members, up to the number of partitions.",
        ["topic", "partition"],
        lag,
    )


def _weights(engines: EngineCache) -> list[Sample]:
    nbytes: Counter[tuple[str, str]] = Counter()
    for key, taken in engines.loaded():
        nbytes[key.kind, str(key.path)] += taken
    return [(labels, float(taken)) for labels, taken in nbytes.items()]
