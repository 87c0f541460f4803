"""GPU path beside CPU path, end to end on a real Kafka: the same model, events and rates through two primary engines.

    python -m tests.bench.paths [--models mlp,din] [--engines ort,trt] [--rates 1000,5000,20000] [--seconds 8]

Models are the reference nets (`engines/train/reference.py`). For each engine a worker with the light model to fall back
on gets an open loop at each rate, one after the other; half the CPUs are the worker's, the last one the load
generator's, the others the broker's. Added latency is from the broker's append of an event to that of its score.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from engines.package import Package
from engines.train.reference import reference_package
from tests.bench.bed import Bed, bed, unfit
from tests.bench.events import random_events
from tests.bench.latency import Latency, latency, offer, save_events, waits
from tests.kafka.worker import Configuration, Worker
from tests.models import random_batch

BATCHES = (8, 32, 64, 256)
"""Buckets of a plan: what a lane finds waiting at 1,000 events a second is a handful, at 20,000 some dozens."""
POOL = 2048
"""Distinct events, sent in turn."""
WARM_UP_S = 3.0
"""Of the middle rate, before the first measured one: the broker compiles, the worker learns what a batch takes."""


@dataclass(frozen=True)
class Run:
    rate: float
    latency: Latency
    cpu: float
    """Processor time of the worker in each second, in cores."""


def main() -> int:
    options = _options()
    if reason := unfit():
        print(f"bench: {reason}", file=sys.stderr)
        return 2
    console = Console()
    with tempfile.TemporaryDirectory(prefix="scorelane-bench-models-") as folder:
        # Before the bed takes this process's CPUs but one: TensorRT tries out kernels.
        packages = {kind: reference_package(Path(folder), kind) for kind in options.models}
        if "trt" in options.engines:
            for package in packages.values():
                build_plan(package, options.precision, options.max_batch)
        worker_cpus = len(os.sched_getaffinity(0)) // 2
        with bed(worker_cpus) as ready:
            ready.kafka.create_topic("bench.dead", options.partitions)
            for kind, package in packages.items():
                events = random_events(package.spec, POOL)
                file = save_events(ready.directory / f"{kind}.events", events, due_field="id")
                runs = {engine: measure(ready, package, engine, file, options) for engine in options.engines}
                _show(console, f"{kind}, events of {file.stat().st_size / POOL:.0f} bytes", runs, options)
    return 0


def build_plan(package: Package, precision: str, max_batch: int) -> None:
    """Put a plan for this machine's GPU into the package and into service, without the gates: weights are random."""
    from engines import plans
    from engines.build import pipeline
    from engines.build.builder import Options
    from engines.build.calibration import Rowset

    batches = tuple(batch for batch in BATCHES if batch < max_batch)
    options: Any = {"precision": precision, "batches": (*batches, max_batch)}
    rows = Rowset(random_batch(package.spec, 2048))
    plans.judge(pipeline.build(package, Options(**options), rows), accepted=True, report={})


def measure(bed: Bed, package: Package, engine: str, events: Path, options: argparse.Namespace) -> list[Run]:
    """One worker through all rates, lowest first: what a rate above its capacity leaves behind meets no other."""
    name = f"{package.name}-{engine}"
    topic, scores = (
        bed.kafka.create_topic(topic, options.partitions, message_timestamp_type="LogAppendTime")
        for topic in (name, f"{name}.scores")
    )
    config: Configuration = {
        "kafka": {"bootstrap_servers": bed.kafka.bootstrap, "group_id": name},
        "topics": [
            {
                **{"name": topic, "model": str(package.path), "scores": scores, "dead_letters": "bench.dead"},
                **{"engine": engine, "fallback": ["light"] * (engine != "light"), "max_batch": options.max_batch},
                **{"budget_ms": options.budget_ms},
            }
        ],
        "worker": {"lanes": options.lanes},
    }
    rates = sorted(options.rates)
    measured = []
    worker = Worker(config, bed.directory, name, bed.cpus.worker)
    try:
        worker.wait_ready()
        offer(bed, topic, scores, events, rates[len(rates) // 2], WARM_UP_S)
        for rate in rates:
            before = worker.cpu_s()
            offered = offer(bed, topic, scores, events, rate, options.seconds)
            measured.append((rate, offered, (worker.cpu_s() - before) / options.seconds))
    finally:
        worker.sigkill()
    table = waits(bed.kafka, topic, scores, attrgetter("key"))
    return [Run(rate, latency(table, offered, options.budget_ms), cpu) for rate, offered, cpu in measured]


def _show(console: Console, title: str, runs: dict[str, list[Run]], options: argparse.Namespace) -> None:
    columns = ("p50 ms", "p99 ms", "p99.9 ms", "missed", "by primary", "CPU", "with sending", "sending")
    table = Table("events/s", "engine", *columns)
    for at_rate in zip(*runs.values(), strict=True):
        for engine, run in zip(runs, at_rate, strict=True):
            found = run.latency
            table.add_row(
                f"{run.rate:,.0f}",
                engine,
                *(f"{value:.0f}" for value in (found.p50_ms, found.p99_ms, found.p999_ms)),
                f"{100 * found.missed:.3f} %",
                f"{100 * found.primary:.2f} %",
                f"{100 * run.cpu:.0f} %",
                f"{found.whole_p99_ms:.0f}",
                f"{found.sent_p99_ms:.0f}",
            )
    console.print(
        f"{title}; {options.partitions} partitions, {options.lanes} lanes, batches of at most {options.max_batch},"
        f" budget {options.budget_ms:.0f} ms. Latency added from append to append; the last two columns are p99 from"
        " the intended send time to the append of the score and to the acknowledgement of the event; CPU of the worker,"
        " 100 % = one core"
    )
    console.print(table)


def _options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[float]:
        return [float(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m tests.bench.paths", description="Engines beside each other.")
    parser.add_argument("--models", type=names, default=["mlp", "din"], help="mlp,din")
    parser.add_argument("--engines", type=names, default=["ort", "trt"], help="ort,trt; any kind the worker knows")
    parser.add_argument("--rates", type=numbers, default=[1_000.0, 5_000.0, 20_000.0], help="events a second")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a run")
    parser.add_argument("--budget-ms", type=float, default=50.0)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--precision", default="fp32", help="of the plan for trt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
