"""One measured run: the worker or the raw loop on one CPU, the broker and everything else on another."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import numpy as np
import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition
from numpy.typing import NDArray

from schemas.score import Score
from tests.kafka.client import Client
from tests.kafka.process import Process, wait_until
from tests.kafka.worker import Configuration, Section, Worker

Kind = Literal["worker", "raw"]
PARTITIONS = 4
WORKER_CPU, OTHER_CPU = "0", "1"


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


@dataclass(frozen=True)
class Latency:
    """Added by the worker: from the broker's append of the event to its append of the score, in whole milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    missed: float
    """Share of the events whose scores came after the budget."""
    events: int
    whole_p99_ms: float
    """From the intended send time to the append of the score."""
    sent_p99_ms: float
    """From the intended send time to the acknowledgement of the event: before the worker could begin."""


class Bench:
    def __init__(self, kafka: Client, directory: Path, settings: Settings) -> None:
        self._kafka = kafka
        self._directory = directory
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

    def latency(self, kind: Kind, size: int, package: Path, rate: float, seconds: float) -> Latency:
        """Offer `rate` events a second, whatever comes back, and see when each score is in the broker."""
        topic = self._kafka.create_topic(self._name("load"), PARTITIONS, message_timestamp_type="LogAppendTime")
        scores = self._score_topic()
        with self._start(kind, topic, scores, package, deadline="timestamp"):
            command = [
                *("taskset", "-c", OTHER_CPU, sys.executable, "-m", "tests.bench.load"),
                *(self._kafka.bootstrap, topic, str(PARTITIONS), str(size), str(rate), str(seconds)),
            ]
            load = Process(command, self._directory / f"load-{self._runs}.log")
            try:
                assert load.wait(seconds + 60) == 0, load.tail()
                sent_p99_ms = float(load.tail().split()[-1])
            finally:
                load.kill()
            wait_until(lambda: self._kafka.size(scores) >= self._kafka.size(topic), "all scores")
        added, whole = self._waits(topic, scores).T
        p50, p99, p999 = np.percentile(added, (50, 99, 99.9))
        missed = float((added > self._settings.budget_ms).mean())
        whole_p99 = float(np.percentile(whole, 99))
        return Latency(float(p50), float(p99), float(p999), missed, len(added), whole_p99, sent_p99_ms)

    def _waits(self, topic: str, scores: str) -> NDArray[np.int64]:
        """[n, 2]: milliseconds of each event's score from the event's append in the broker, and from when it was due.

        Without the first fifth: connections, the first batches and caches are in it.
        """
        decode = msgspec.msgpack.Decoder(Score).decode
        appended = {(record.partition, record.offset): record.timestamp for record in self._kafka.read_all(topic)}
        rows = [
            (score.event_time_ms, record.timestamp - appended[score.partition, score.offset], record.timestamp)
            for record in self._kafka.read_all(scores)
            if record.value is not None
            for score in (decode(record.value),)
        ]
        table = np.array(rows, dtype=np.int64)
        due = table[:, 0]
        table[:, 2] -= due
        waits: NDArray[np.int64] = table[due >= due.min() + 0.2 * np.ptp(due), 1:]
        return waits

    @contextmanager
    def _start(self, kind: Kind, topic: str, scores: str, package: Path, *, deadline: str) -> Iterator[Running]:
        if kind == "worker":
            worker = Worker(self._config(topic, scores, package, deadline), self._directory, scores, WORKER_CPU)
            try:
                yield worker.wait_ready()
            finally:
                worker.sigkill()
        else:
            command = ["taskset", "-c", WORKER_CPU, sys.executable, "-m", "tests.bench.raw"]
            raw = Process([*command, self._kafka.bootstrap, topic, scores, str(package)], self._directory / scores)
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
