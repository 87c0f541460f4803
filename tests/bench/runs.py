"""One measured run: the worker or the raw loop on one CPU, the broker and everything else on others."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Literal, Protocol

import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.bench.bed import Bed
from tests.bench.latency import Latency, latency, offer, waits
from tests.kafka.process import Process, wait_until
from tests.kafka.worker import Configuration, Section, Worker

Kind = Literal["worker", "raw"]
PARTITIONS = 4


class Running(Protocol):
    @property
    def pid(self) -> int: ...


@dataclass(frozen=True)
class Settings:
    max_batch: int
    lanes: int
    budget_ms: float


@dataclass(frozen=True)
class Throughput:
    events_per_s: float
    cpu_us: float
    """Processor time of the measured process per event."""


class Bench:
    def __init__(self, bed: Bed, settings: Settings) -> None:
        self._bed = bed
        self._kafka = bed.kafka
        self._settings = settings
        self._runs = 0

    def throughput(self, kind: Kind, topic: str, package: Path, count: int) -> Throughput:
        """Score a preloaded topic of `count` events."""
        scores = self._score_topic()
        with self._start(kind, topic, scores, package, deadline="arrival") as running:
            process = psutil.Process(running.pid)
            seen = wait_until(lambda: self._kafka.size(scores), "the first scores")
            before = _cpu_s(process)
            wait_until(lambda: self._kafka.size(scores) >= count, f"{count} scores", timeout_s=120)
            cpu_s = _cpu_s(process) - before
        assert self._kafka.size(scores) == count, "every event is scored once"
        first, last, in_first = self._kafka.run(self._appended(scores))
        return Throughput((count - in_first) / max((last - first) / 1000, 1e-3), cpu_s / (count - seen) * 1e6)

    def latency(self, kind: Kind, events: Path, package: Path, rate: float, seconds: float) -> Latency:
        """Offer `rate` events a second and see when each score is in the broker."""
        topic = self._kafka.create_topic(self._name("load"), PARTITIONS, message_timestamp_type="LogAppendTime")
        scores = self._score_topic()
        with self._start(kind, topic, scores, package, deadline="timestamp"):
            offered = offer(self._bed, topic, scores, events, rate, seconds)
        table = waits(self._kafka, topic, scores, attrgetter("event_time_ms"))
        return latency(table, offered, self._settings.budget_ms)

    @contextmanager
    def _start(self, kind: Kind, topic: str, scores: str, package: Path, *, deadline: str) -> Iterator[Running]:
        if kind == "worker":
            config = self._config(topic, scores, package, deadline)
            worker = Worker(config, self._bed.directory, scores, self._bed.cpus.worker)
            try:
                yield worker.wait_ready()
            finally:
                worker.sigkill()
        else:
            command = ["taskset", "-c", self._bed.cpus.worker, sys.executable, "-m", "tests.bench.raw"]
            raw = Process([*command, self._kafka.bootstrap, topic, scores, str(package)], self._bed.directory / scores)
            try:
                wait_until(lambda: self._kafka.members(scores) == 1, f"the raw loop joins\n{raw.tail()}")
                yield raw
            finally:
                raw.kill()

    def _config(self, topic: str, scores: str, package: Path, deadline: str) -> Configuration:
        route: Section = {
            **{"name": topic, "model": str(package), "scores": scores, "dead_letters": "bench.dead"},
            **{"engine": "light", "fallback": [], "max_batch": self._settings.max_batch},
            **{"budget_ms": self._settings.budget_ms, "deadline": deadline},
        }
        return {
            "kafka": {"bootstrap_servers": self._kafka.bootstrap, "group_id": scores},
            "topics": [route],
            "worker": {"commit_interval_ms": 1000, "lanes": self._settings.lanes},
        }

    def _name(self, what: str) -> str:
        self._runs += 1
        return f"bench-{what}-{self._runs}"

    def _score_topic(self) -> str:
        return self._kafka.create_topic(self._name("scores"), PARTITIONS, message_timestamp_type="LogAppendTime")

    async def _appended(self, topic: str) -> tuple[int, int, int]:
        """When the first and the last score were appended, in ms, and how many with the first."""
        async with AIOKafkaConsumer(bootstrap_servers=self._kafka.bootstrap, auto_offset_reset="earliest") as consumer:
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            firsts: list[int] = []
            lasts: list[int] = []
            for partition in (partition for partition in partitions if ends[partition]):
                consumer.seek(partition, 0)
                records = (await consumer.getmany(partition, timeout_ms=10_000))[partition]
                firsts += [record.timestamp for record in records]
                consumer.seek(partition, ends[partition] - 1)
                lasts.append((await consumer.getone(partition)).timestamp)
        return min(firsts), max(lasts), firsts.count(min(firsts))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
