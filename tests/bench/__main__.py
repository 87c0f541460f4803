"""Measurements on a real Kafka, printed as ratios: `python -m tests.bench [--quick]`.

Throughput: a worker with the light model on one CPU, beside the raw loop (tests/bench/raw.py) on the same CPU with the
same events, model, scores and acknowledgements; the broker has the others. Runs are interleaved, medians are shown.
Latency: an open loop at 30 % of the worker's throughput, from the append of each event to that of its score.

`python -m tests.bench rules` compares batching rules, `python -m tests.bench pressure` shows what faults cost: both in
simulated time and without Kafka. `python -m tests.bench.paths` compares engines.
"""

import argparse
import sys
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from schemas.event import AdEvent
from tests.bench import pressure, rules
from tests.bench.bed import Bed, bed, unfit
from tests.bench.events import POOL, SIZES, events, package, preload
from tests.bench.latency import Latency, save_events
from tests.bench.runs import PARTITIONS, Bench, Kind, Settings, Throughput

KINDS: tuple[Kind, Kind] = ("raw", "worker")


def main() -> int:
    simulated = {"rules": rules.main, "pressure": pressure.main}.get("".join(sys.argv[1:2]))
    if simulated is not None:
        return simulated(sys.argv[2:])
    options = _options()
    if reason := unfit():
        print(f"bench: {reason}", file=sys.stderr)
        return 2
    with bed() as ready:
        _measure(ready, options)
    return 0


def _measure(bed: Bed, options: argparse.Namespace) -> None:
    console = Console()
    kafka = bed.kafka
    kafka.create_topic("bench.dead")
    bench = Bench(bed, Settings(options.max_batch, options.lanes, options.budget_ms))
    packages = {size: package(bed.directory, size).path for size in options.sizes}
    actual = {size: preload(kafka, f"events-{size}", PARTITIONS, size, options.events) for size in options.sizes}
    rates: dict[tuple[Kind, int], list[Throughput]] = {(kind, size): [] for kind in KINDS for size in options.sizes}
    for repeat in range(options.repeats):
        for size in options.sizes:
            # The order alternates, so that neither always has the warmer broker.
            for kind in KINDS if repeat % 2 == 0 else reversed(KINDS):
                rates[kind, size].append(bench.throughput(kind, f"events-{size}", packages[size], options.events))
    _show_throughput(console, rates, actual)
    if options.seconds > 0:
        size = 528 if 528 in options.sizes else options.sizes[0]
        rows = [list(msgspec.structs.asdict(event).values()) for event in events(size, POOL)]
        file = save_events(bed.directory / "events", rows, due_field=list(AdEvent.__struct_fields__).index("time_ms"))
        worker = median(run.events_per_s for run in rates["worker", size])
        for rate in options.rate or [0.3 * worker]:
            latencies = {kind: bench.latency(kind, file, packages[size], rate, options.seconds) for kind in KINDS}
            _show_latency(console, latencies, size, rate, rate / worker, options.budget_ms)


def _show_throughput(
    console: Console, rates: dict[tuple[Kind, int], list[Throughput]], actual: dict[int, float]
) -> None:
    table = Table("bytes", "raw loop/s", "worker/s", "worker : raw", "each run", "CPU us", "raw : worker")
    for size, mean_bytes in actual.items():
        raw, worker = rates["raw", size], rates["worker", size]
        ratios = [mine.events_per_s / theirs.events_per_s for mine, theirs in zip(worker, raw, strict=True)]
        base, ours = (median(run.events_per_s for run in runs) for runs in (raw, worker))
        raw_us, worker_us = (median(run.cpu_us for run in runs) for runs in (raw, worker))
        table.add_row(
            f"{mean_bytes:.0f}",
            f"{base:,.0f}",
            f"{ours:,.0f}",
            f"{ours / base:.2f}",
            " ".join(f"{ratio:.2f}" for ratio in ratios),
            f"{raw_us:.2f} {worker_us:.2f}",
            f"{raw_us / worker_us:.2f}",
        )
    console.print("events a second on one core, light model, end to end on Apache Kafka (at least 0.7 is wanted)")
    console.print(table)
    console.print("CPU us: processor time of an event, raw and worker; its ratio holds on a busy machine too")


def _show_latency(
    console: Console, latencies: dict[Kind, Latency], size: int, rate: float, load: float, budget_ms: float
) -> None:
    table = Table("", "events", "p50 ms", "p99 ms", "p99.9 ms", "missed", "p99 : budget", "with sending", "sending")
    for kind, latency in latencies.items():
        table.add_row(
            kind,
            f"{latency.events:,}",
            *(f"{value:.0f}" for value in (latency.p50_ms, latency.p99_ms, latency.p999_ms)),
            f"{100 * latency.missed:.3f} %",
            f"{latency.p99_ms / budget_ms:.2f}",
            f"{latency.whole_p99_ms:.0f}",
            f"{latency.sent_p99_ms:.0f}",
        )
    console.print(
        f"added latency at {rate:,.0f} events of {size} bytes a second, {load:.0%} of the worker's throughput, open"
        f" loop; budget {budget_ms:.0f} ms (p99 within it and less than 0.1 % missed wanted). Added: from the append"
        " of an event at the broker to that of its score; the last two are p99 from the intended send time on"
    )
    console.print(table)
    if max(latency.sent_p99_ms for latency in latencies.values()) > budget_ms / 2:
        console.print("sending alone took much of the budget: this machine is too busy to measure the worker's latency")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measurements, printed as ratios.")
    parser.add_argument("--quick", action="store_true", help="fewer events and repetitions, for a first look")
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES), help="bytes of an event")
    parser.add_argument("--events", type=int, help="events of one throughput run [400,000; quick: 100,000]")
    parser.add_argument("--repeats", type=int, help="runs of each kind and size [5; quick: 1]")
    parser.add_argument("--seconds", type=float, help="length of a latency run, 0 for none [10; quick: 5]")
    parser.add_argument(
        "--rate",
        type=float,
        action="append",
        help="events a second of a latency run, instead of 30 % of the throughput",
    )
    parser.add_argument("--max-batch", type=int, default=1024)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--budget-ms", type=float, default=50.0)
    options = parser.parse_args()
    usual = (100_000, 1, 5.0) if options.quick else (400_000, 5, 10.0)
    for name, value in zip(("events", "repeats", "seconds"), usual, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    sys.exit(main())
