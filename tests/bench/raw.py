"""The loop to compare with: getmany, decode, numpy, send_batch, and nothing else.

No deadlines, lanes, dead letters, metrics, fences or limits: what one core can do with the same client, the same
events, the same model, the same scores on the wire and the same acknowledgements.

    python -m tests.bench.raw BOOTSTRAP TOPIC SCORES PACKAGE
"""

import asyncio
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from engines.package import Package
from schemas.event import AdEvent
from worker.interpreter import settle_collector

IN_FLIGHT = 8
COMMIT_S = 1.0
_OFFSETS = attrgetter("offset")


class Logistic:
    """`engines.light`, written out for this one event."""

    def __init__(self, package: Package) -> None:
        with np.load(package.file("light.npz")) as arrays:
            self._ = {name: arrays[name] for name in arrays.files}
        self.name, self.version = package.name, package.version

    def __call__(self, events: Sequence[AdEvent]) -> list[float]:
        a, n = self._, len(events)
        dense = np.frombuffer(b"".join([event.numeric for event in events]), np.float32).reshape(n, -1)
        ids = np.frombuffer(b"".join([event.categorical for event in events]), np.int32).reshape(n, -1)
        hist = np.frombuffer(b"".join([event.sequence for event in events]), np.int32).reshape(n, -1)
        squashed = np.copysign(np.log(np.abs(dense) + np.float32(1)), dense)
        logit = np.clip(squashed, a["dense.low"], a["dense.high"]) @ a["dense.weight"]
        logit += a["ids.table"].take(ids + a["ids.offset"]) @ np.ones(ids.shape[1], np.float32)
        pooled = a["hist.table"].take(hist) @ np.ones(hist.shape[1], np.float32)
        logit += pooled / np.maximum(np.count_nonzero(hist, axis=1), 1).astype(np.float32)
        scores: list[float] = (1 / (1 + np.exp(-(logit + a["bias"])))).tolist()
        return scores


async def main(bootstrap: str, topic: str, scores: str, package: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    model = Logistic(Package.open(package))
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=scores,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
        fetch_max_bytes=16 << 20,
        max_partition_fetch_bytes=1 << 20,
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=256 << 10)
    async with producer, consumer:
        settle_collector()
        await loop(stop, consumer, producer, scores, model)


async def loop(
    stop: asyncio.Event, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, topic: str, model: Logistic
) -> None:
    decode = msgspec.msgpack.Decoder(AdEvent).decode
    encode = msgspec.msgpack.Encoder().encode
    pending: deque[tuple[TopicPartition, int, asyncio.Future[object]]] = deque()
    acknowledged: dict[TopicPartition, int] = {}
    commit_at = time.monotonic() + COMMIT_S

    def encoded(partition: TopicPartition, records: Sequence[ConsumerRecord[bytes, bytes]]) -> list[bytes]:
        events = [decode(record.value) for record in records]
        now = time.time_ns() // 1_000_000
        return list(
            map(
                encode,
                zip(
                    [event.request_id for event in events],
                    model(events),
                    *map(repeat, (model.name, model.version, "light", None, partition.topic, partition.partition)),
                    map(_OFFSETS, records),
                    [event.time_ms for event in events],
                    repeat(now),
                    repeat(False),
                    repeat(600_000),
                ),
            )
        )

    while not stop.is_set():
        polled = await consumer.getmany(timeout_ms=20)
        for _ in range(3):
            await asyncio.sleep(0)  # lets the next fetch leave before the work begins
        for partition, records in polled.items():
            stamp = time.time_ns() // 1_000_000
            values = encoded(partition, records)
            start = 0
            while start < len(values):
                batch = producer.create_batch()
                stop_at = start
                for value in values[start:]:
                    if batch.append(timestamp=stamp, key=None, value=value) is None:
                        break
                    stop_at += 1
                batch.close()
                sent = await producer.send_batch(batch, topic, partition=partition.partition)
                pending.append((partition, records[stop_at - 1].offset + 1, sent))
                start = stop_at
        while pending and (len(pending) > IN_FLIGHT or pending[0][2].done()):
            partition, offset, sent = pending.popleft()
            await sent
            acknowledged[partition] = offset
        if acknowledged and time.monotonic() > commit_at:
            await consumer.commit(acknowledged)
            acknowledged.clear()
            commit_at = time.monotonic() + COMMIT_S


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
