"""Ad events of a given size in bytes and the model that scores them, events of any spec, and a topic full of events."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engines.package import Package
from schemas.encoder import Encoder
from schemas.event import AdEvent
from schemas.spec import ModelSpec
from tests.kafka.client import Client
from tests.models import random_batch, tiny_package

SIZES = {200: (24, 4, 10), 528: (72, 4, 44), 1024: (140, 26, 78)}
"""Bytes of an event -> its numbers, categories and steps of the sequence."""

IDS = 1000
POOL = 4096
"""Distinct events, sent in turn."""
_BATCH_BYTES = 256 << 10


def package(directory: Path, size: int) -> Package:
    """A light model (and an ONNX one) over all of the event's blobs."""
    numeric, categorical, sequence = SIZES[size]
    text = f"""
event = "ad"
features = [
    {{ name = "numeric", tensor = "dense", shape = [{numeric}], encoding = "raw" }},
    {{ name = "categorical", tensor = "ids", dtype = "int32", shape = [{categorical}], encoding = "raw", ids = {IDS} }},
    {{ name = "hist", field = "sequence", shape = [{sequence}], encoding = "raw", ids = {IDS}, pad = true }},
]
"""
    return tiny_package(directory, ModelSpec.parse(text.encode(), "bench.toml"), "lr", name=f"bench-{size}")


def events(size: int, count: int, seed: int = 0) -> list[AdEvent]:
    """Distinct events of now, each within a few bytes of `size` in msgpack."""
    numeric, categorical, sequence = SIZES[size]
    numbers = np.random.default_rng(seed)
    ints = random.Random(seed)
    now = time.time_ns() // 1_000_000
    return [
        AdEvent(
            request_id=f"req-{index:011d}",
            user_id=ints.randrange(1 << 33, 1 << 40),
            ad_id=ints.randrange(1, IDS),
            placement_id=ints.randrange(100),
            time_ms=now,
            deadline_ms=None,
            numeric=numbers.standard_normal(numeric).astype("<f4").tobytes(),
            categorical=numbers.integers(0, IDS, categorical).astype("<i4").tobytes(),
            sequence=numbers.integers(1, IDS, sequence).astype("<i4").tobytes(),
        )
        for index in range(count)
    ]


def random_events(spec: ModelSpec, count: int) -> list[dict[str, Any]]:
    """Valid events of a custom spec in its map layout, without key and times: random rows, as they are on the wire."""
    encode = Encoder(spec, "msgpack").encode
    columns: dict[str, Any] = {}
    for tensor, values in random_batch(spec, count).items():
        flat, start = values.reshape(count, -1), 0
        for feature in spec.by_tensor[tensor]:
            column = flat[:, start : start + feature.size].tolist()
            columns[feature.field] = column if feature.shape else [item for (item,) in column]
            start += feature.size
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [msgspec.msgpack.decode(encode(row)) for row in rows]


def preload(kafka: Client, topic: str, partitions: int, size: int, count: int) -> float:
    """Create a topic with `count` events; the mean size of an event in bytes."""
    kafka.create_topic(topic, partitions)
    encode = msgspec.msgpack.Encoder().encode
    pool = [encode(event) for event in events(size, min(count, POOL))]

    async def fill() -> None:
        producer = kafka.producer
        sent: list[asyncio.Future[object]] = []
        written = 0
        while written < count:
            partition = len(sent) % partitions
            batch = producer.create_batch()
            while written < count:
                appended = batch.append(timestamp=None, key=None, value=pool[written % len(pool)])
                if appended is None or batch.size() > _BATCH_BYTES:
                    break
                written += 1
            batch.close()
            sent.append(await producer.send_batch(batch, topic, partition=partition))
        await asyncio.gather(*sent)

    kafka.run(fill())
    return sum(map(len, pool)) / len(pool)
