"""How fast engines are on the same rows, measured in turns so that a drifting clock or neighbour hits all of them."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import Engine, Features, Session, run

WARM_UP = 10
SITTINGS = 4
"""Times that every engine's session is opened anew: how its threads and memory fall differs from one to the next."""
ROUNDS = 5
"""Rounds a sitting and bucket."""
BATCHES = 100
"""Batches a round, once one by one and once in flight."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one bucket, by one session on one thread, input and output copies included.

    Every figure is the median over all rounds, so that a neighbour's burst in a few of them decides nothing.
    """

    bucket: int
    batches: int
    p50_us: float
    p99_us: float
    """Of one batch alone, from `submit` to the end of `collect`."""
    rows_per_s: float
    """With as many batches in flight as the session takes."""


def measure(
    engines: Mapping[str, Engine],
    batches: Mapping[int, list[Features]],
    *,
    sittings: int = SITTINGS,
    rounds: int = ROUNDS,
    per_round: int = BATCHES,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, dict[int, Speed]]:
    """Engine name -> bucket -> its speed. `batches` are the inputs of each bucket, taken in turn."""
    latencies: dict[tuple[str, int], list[NDArray[np.float64]]] = {}
    rates: dict[tuple[str, int], list[float]] = {}
    turns = list(engines)
    for _ in range(sittings):
        with ExitStack() as stack:
            sessions = {}
            for name in turns:
                sessions[name] = engines[name].open_session()
                stack.callback(sessions[name].close)
            for bucket, inputs in batches.items():
                for session in sessions.values():
                    _latencies(session, inputs, WARM_UP, clock_ns)
                for _ in range(rounds):
                    for name in turns:
                        taken = _latencies(sessions[name], inputs, per_round, clock_ns)
                        latencies.setdefault((name, bucket), []).append(np.quantile(taken, [0.5, 0.99]) / 1000.0)
                        rates.setdefault((name, bucket), []).append(_rate(sessions[name], inputs, per_round, clock_ns))
                    turns = [*turns[1:], turns[0]]
    return {
        name: {
            bucket: Speed(
                bucket=bucket,
                batches=sittings * rounds * per_round,
                p50_us=float(np.median([p50 for p50, _ in latencies[name, bucket]])),
                p99_us=float(np.median([p99 for _, p99 in latencies[name, bucket]])),
                rows_per_s=float(np.median(rates[name, bucket])),
            )
            for bucket in batches
        }
        for name in engines
    }


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
