"""What a load needs: lanes, partitions and processes, from measured service times. Pure.

A lane is a batch-service queue: rows arrive in Poisson chunks; when the session is free it takes all that waits, at
most `max_batch`; n rows take a + b * n. Only the mean latency of single arrivals and unbounded batches has a closed
form, a bound, to which the tests hold the simulation (Inoue, Queueing analysis of GPU-based inference servers with
dynamic batching, Performance Evaluation 147, 2021; arXiv 1912.06322). Tails, chunks and bounded batches have none, so
they are simulated, with a seed.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal, NamedTuple

import numpy as np

from worker.service_time import ServiceTime

MAX_LANES = 1024
SIMULATED_ROWS = 50_000
"""Rows of one simulation: five hundred of them are above the 99th percentile."""


class PlanError(Exception):
    """No number of lanes serves the load. The message says why and what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    rate: float
    """Rows a second, at the peak."""
    budget_s: float
    """From the arrival at the worker to the acknowledged score."""
    after_s: float = 0.010
    """Part of the budget that publishing takes."""
    chunk: int = 1
    """Rows that arrive together: what one poll of one partition brings."""
    host_row_s: float = 10e-6
    """Time of one core for a row, all but the engine: fetch, decode, publish."""
    max_batch: int = 256
    headroom: float = 0.7
    """Utilisation that lanes and cores are planned for."""
    lanes_a_process: int = 4


class Latency(NamedTuple):
    """One lane, simulated. Seconds."""

    mean: float
    p50: float
    p99: float
    mean_batch: float
    busy: float
    """Part of the time that the session works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    lanes: int
    """Lanes of all processes together."""
    processes: int
    partitions: int
    """Fewest partitions of the topic: every lane has one, and the next doubling of processes finds some."""
    capacity: float
    """Rows a second that are served at most: by the lanes with full batches, or by a core of each process beside the
    engine, whichever are fewer."""
    bounded_by: Literal["lanes", "host"]
    """Which of the two that is."""
    latency: Latency
    """Of one lane at its share of the load."""
    host_busy: float
    """Part of a core that each process uses beside the engine."""
    limited_by: str
    """What asks for that many lanes: latency, utilisation, or cores."""


def capacity(service: ServiceTime, max_batch: int) -> float:
    """Rows a second that one lane serves with full batches."""
    return max_batch / service.expected(max_batch)


def simulate(
    service: ServiceTime,
    rate: float,
    *,
    max_batch: int = 256,
    chunk: int = 1,
    rows: int = SIMULATED_ROWS,
    seed: int = 0,
) -> Latency:
    """One lane at `rate` rows a second in Poisson chunks of `chunk` rows; deterministic for a seed."""
    chunks = max(1, rows // chunk)
    gaps = np.random.default_rng(seed).exponential(chunk / rate, chunks)
    arrivals = np.repeat(np.cumsum(gaps), chunk)
    times = arrivals.tolist()
    seconds = [service.expected(n) for n in range(max_batch + 1)]
    finished = np.empty(len(times))
    free = busy = 0.0
    start = batches = 0
    while start < len(times):
        free = max(free, times[start])
        stop = min(bisect_right(times, free, start), start + max_batch)
        taken = seconds[stop - start]
        busy += taken
        free += taken
        finished[start:stop] = free
        start = stop
        batches += 1
    latencies = finished - arrivals
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    return Latency(float(latencies.mean()), float(p50), float(p99), len(times) / batches, busy / free)


def plan(service: ServiceTime, load: Load, *, seed: int = 0) -> Plan:
    """The fewest lanes whose p99 leaves room for publishing and whose utilisation keeps the headroom.

    Lanes are taken as independent: each has its stream or core. Raises `PlanError` when no number of them is enough.
    """
    room = load.budget_s - load.after_s
    if room <= 0:
        raise PlanError(
            f"publishing alone takes {load.after_s * 1e3:g} ms, the whole budget is {load.budget_s * 1e3:g} ms; take a"
            f" larger budget, or give the time that publishing takes with --publish-ms"
        )
    alone = service.predict(1)
    if alone > room:
        raise PlanError(
            f"one row alone takes {alone * 1e3:.1f} ms (with a safety margin, {service.expected(1) * 1e3:.1f} ms"
            f" without) of the {room * 1e3:.1f} ms that the budget of"
            f" {load.budget_s * 1e3:.1f} ms leaves after publishing; take a lighter model or a larger budget"
        )
    for_cores = ceil(load.rate * load.host_row_s / load.headroom)
    for_load = ceil(load.rate / capacity(service, load.max_batch) / load.headroom)
    lanes = max(1, for_load)
    limited_by = "utilisation"
    while True:
        latency = simulate(service, load.rate / lanes, max_batch=load.max_batch, chunk=load.chunk, seed=seed)
        if latency.p99 <= room:
            break
        if lanes >= MAX_LANES or load.rate / lanes < 1 or service.predict(min(load.chunk, load.max_batch)) > room:
            raise PlanError(
                f"{lanes} lanes still have a p99 of {latency.p99 * 1e3:.1f} ms for {room * 1e3:.1f} ms; chunks of"
                f" {load.chunk} rows are too large for this engine and budget: take smaller polls or a lighter model"
            )
        limited_by = "latency"
        lanes = lanes + max(1, lanes // 4)
    processes = max(for_cores, ceil(lanes / load.lanes_a_process))
    if for_cores > lanes:
        lanes, limited_by = for_cores, "cores"
        latency = simulate(service, load.rate / lanes, max_batch=load.max_batch, chunk=load.chunk, seed=seed)
    of_lanes = lanes * capacity(service, load.max_batch)
    of_host = processes / load.host_row_s if load.host_row_s else inf
    return Plan(
        lanes=lanes,
        processes=processes,
        partitions=max(lanes, 2 * processes),
        capacity=min(of_lanes, of_host),
        bounded_by="lanes" if of_lanes <= of_host else "host",
        latency=latency,
        host_busy=load.rate * load.host_row_s / processes,
        limited_by=limited_by,
    )
