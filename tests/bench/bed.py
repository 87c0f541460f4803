"""What a benchmark on Kafka stands on: a broker of its own, and who has which CPUs."""

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.client import Client


@dataclass(frozen=True)
class Cpus:
    """Lists of CPUs as taskset takes them. What is measured shares its own with nothing else."""

    worker: str
    load: str
    broker: str

    @classmethod
    def split(cls, available: Collection[int], worker: int = 1) -> "Cpus":
        """`worker` CPUs for what is measured, the last one for the load generator, all others for the broker.

        With too few the worker gets fewer; of two, broker and load generator share the second.
        """
        numbers = sorted(available)
        mine = max(1, min(worker, len(numbers) - 2))
        others = numbers[mine:]
        return cls(_listed(numbers[:mine]), _listed(others[-1:]), _listed(others[:-1] or others))


@dataclass(frozen=True)
class Bed:
    kafka: Client
    directory: Path
    """For logs, configuration and events; gone afterwards."""
    cpus: Cpus


def unfit() -> str | None:
    """Why nothing can be measured on this machine, in one line; None when it can."""
    if len(os.sched_getaffinity(0)) < 2:
        return "two CPUs are needed, one for the worker and one for the broker"
    return jars.missing()


@contextmanager
def bed(worker_cpus: int = 1) -> Iterator[Bed]:
    """A running broker with warm internal topics. This process moves to the load generator's CPU."""
    cpus = Cpus.split(os.sched_getaffinity(0), worker_cpus)
    os.sched_setaffinity(0, {int(cpus.load)})
    broker = Broker(heap_mb=1024, cpus=cpus.broker, quick_start=False)
    try:
        broker.start()
        kafka = Client(broker.bootstrap)
        try:
            kafka.warm_up()
            with tempfile.TemporaryDirectory(prefix="scorelane-bench-") as directory:
                yield Bed(kafka, Path(directory), cpus)
        finally:
            kafka.close()
    finally:
        broker.close()


def _listed(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
