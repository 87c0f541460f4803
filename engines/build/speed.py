"""How fast engines are on the same rows, measured in turns so that a drifting clock or neighbour hits all of them."""

import time
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from engines.base import Features, Session, run

WARM_UP = 10
ROUNDS = 20
BATCHES = 50
"""Batches a round: 20 x 50 latencies an engine and bucket leave ten above the 99th percentile."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one bucket, by one session on one thread, input and output copies included."""

    bucket: int
    batches: int
    p50_us: float
    p99_us: float
    """Of one batch alone, from `submit` to the end of `collect`."""
    rows_per_s: float
    """With as many batches in flight as the session takes. The median over the rounds."""


def measure(
    sessions: Mapping[str, Session],
    batches: Mapping[int, list[Features]],
    *,
    rounds: int = ROUNDS,
    per_round: int = BATCHES,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, list[Speed]]:
    """Engine name -> its speed at each bucket. `batches` are the inputs of each bucket, taken in turn."""
    result: dict[str, list[Speed]] = {name: [] for name in sessions}
    for bucket, inputs in batches.items():
        latencies: dict[str, list[int]] = {name: [] for name in sessions}
        rates: dict[str, list[float]] = {name: [] for name in sessions}
        for session in sessions.values():
            for index in range(WARM_UP):
                run(session, inputs[index % len(inputs)])
        for _ in range(rounds):
            for name, session in sessions.items():
                latencies[name] += _latencies(session, inputs, per_round, clock_ns)
                rates[name].append(_rate(session, inputs, per_round, clock_ns))
        for name in sessions:
            p50, p99 = np.quantile(latencies[name], [0.5, 0.99]) / 1000.0
            speed = Speed(
                bucket=bucket,
                batches=len(latencies[name]),
                p50_us=float(p50),
                p99_us=float(p99),
                rows_per_s=float(np.median(rates[name])),
            )
            result[name].append(speed)
    return result


def _latencies(session: Session, inputs: list[Features], count: int, clock_ns: Callable[[], int]) -> list[int]:
    taken = []
    for index in range(count):
        features = inputs[index % len(inputs)]
        started = clock_ns()
        run(session, features)
        taken.append(clock_ns() - started)
    return taken


def _rate(session: Session, inputs: list[Features], count: int, clock_ns: Callable[[], int]) -> float:
    """Rows a second of `count` batches with the session's depth in flight."""
    rows = flying = 0
    started = clock_ns()
    for index in range(count):
        if flying == session.depth:
            rows += len(session.collect())
            flying -= 1
        session.submit(inputs[index % len(inputs)])
        flying += 1
    for _ in range(flying):
        rows += len(session.collect())
    return rows * 1e9 / max(1, clock_ns() - started)
