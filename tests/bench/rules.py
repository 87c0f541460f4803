"""Batching rules under the same arrivals on the whole pipeline, in simulated time: `python -m tests.bench rules`.

The worker's own rule beside Triton's static timer and BentoML's CORK: missed deadlines and p99. Deterministic.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench.rivals import Cork, Timer1ms, Timer5ms
from tests.models import tiny_package
from worker.batcher import Batcher
from worker.config import Config, KafkaConfig, TopicConfig, WorkerConfig
from worker.replay.device import Pace
from worker.replay.faults import Fault
from worker.replay.pipeline import Scene, play
from worker.replay.report import ClassReport
from worker.replay.synthetic import Traffic, make

PRIMARY = Pace(fixed_s=2e-3, row_s=60e-6, jitter=0.1)
LIGHT = Pace(fixed_s=0.2e-3, row_s=1.5e-6)
MAX_BATCH = 64
CAPACITY = MAX_BATCH / (PRIMARY.fixed_s * 1.05 + MAX_BATCH * PRIMARY.row_s * 1.05)
LOADS = (0.1, 0.3, 0.6, 0.8, 0.9, 0.95, 1.1, 1.5)
RULES: dict[str, tuple[type[Batcher], dict[str, object]]] = {
    "scorelane": (Batcher, {}),
    "without fallback": (Batcher, {"fallback": (), "late": "skip"}),
    "timer 1 ms": (Timer1ms, {"fallback": ()}),
    "timer 5 ms": (Timer5ms, {"fallback": ()}),
    "CORK": (Cork, {"fallback": ()}),
}


class Case(NamedTuple):
    """A load, and what goes wrong."""

    name: str
    traffic: Traffic
    faults: tuple[str, ...] = ()


def cases(loads: Sequence[float], seconds: float) -> Iterator[Case]:
    """Steady loads, parts of the primary's capacity; then a tenth of it with trouble from a quarter to five eighths."""
    for load in loads:
        yield Case(f"{load:.0%}", Traffic(rate=load * CAPACITY, seconds=seconds))
    start, stop = seconds / 4, seconds * 5 / 8
    calm = Traffic(rate=0.1 * CAPACITY, seconds=seconds)
    burst = Traffic(rate=0.1 * CAPACITY, seconds=seconds, bursts=[(start, stop, 10.0)])
    slow = f"slow:primary:20:{start}s-{stop}s"
    yield Case("burst x10", burst)
    yield Case("20 x slower", calm, (slow,))
    yield Case("both", burst, (slow,))


def compare(wanted: Iterable[Case]) -> Iterator[tuple[Case, str, ClassReport]]:
    """(case, rule, what became of the events), one after the other. Budget 50 ms, one lane, Poisson arrivals."""
    with tempfile.TemporaryDirectory(prefix="scorelane-rules-") as directory:
        package = tiny_package(Path(directory), "tipping")
        for case in wanted:
            trace = make(case.traffic, "tips", package.spec, "msgpack")
            for name, (batcher, options) in RULES.items():
                topic = msgspec.convert(
                    {"name": "tips", "model": str(package.path), "max_batch": MAX_BATCH, **options}, TopicConfig
                )
                config = Config(
                    kafka=KafkaConfig(bootstrap_servers="none:1"), topics=(topic,), worker=WorkerConfig(lanes=1)
                )
                scene = Scene(
                    config=config,
                    trace=trace,
                    paces={"ort": PRIMARY, "light": LIGHT},
                    faults=[Fault.parse(fault) for fault in case.faults],
                    batcher=batcher,
                )
                yield case, name, play(scene).report.classes[0]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench rules", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="simulated time of each run")
    parser.add_argument("--load", type=float, action="append", help="part of the primary's capacity")
    options = parser.parse_args(arguments)
    logging.getLogger("scorelane").setLevel(logging.CRITICAL)
    table = Table(box=box.SIMPLE, title=f"missed deadlines and p99; capacity of the primary {CAPACITY:,.0f} events/s")
    for column in ("load", *RULES):
        table.add_column(column, justify="right")
    cells: dict[str, list[str]] = {}
    for case, _, found in compare(cases(options.load or LOADS, options.seconds)):
        cells.setdefault(case.name, []).append(f"{found.missed / found.events:.2%}  {found.p99_ms:,.0f} ms")
    for name, row in cells.items():
        table.add_row(name, *row)
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
