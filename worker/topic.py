"""One input topic at run time: how its records are decoded and timed, its engines, its lanes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np

import engines
from engines.base import Engine
from engines.package import Package
from schemas.decoder import Decoder
from worker.batch import Chunk, Record
from worker.batcher import Batcher
from worker.clock import Clock
from worker.config import TopicConfig, WorkerConfig
from worker.deadline import DeadlineRule, header_deadline_ms
from worker.delivery import DeliveryDesk
from worker.dispatcher import Dispatcher, Tier
from worker.lane import Lane, LaneBounds
from worker.metrics import Metrics
from worker.partition import Partition
from worker.publisher import Publisher
from worker.scores import ScoreEncoder
from worker.service_time import ServiceTime
from worker.station import Station

log = logging.getLogger("scorelane.topic")

RECORD_BYTES: Final = 700
"""Memory of one record beside its value: the client's record object, its key and its place in our columns."""

_headers = attrgetter("headers")


@dataclass(slots=True)
class LoadedModel:
    """A package and the engines of the chain, the primary first."""

    package: Package
    engines: list[Engine]

    @classmethod
    def load(cls, config: TopicConfig) -> LoadedModel:
        """Open and verify the package, load every engine. Blocking. Raises `LoadError`."""
        package = Package.open(Path(config.model))
        kinds = list(dict.fromkeys((config.engine, *config.fallback)))
        return cls(
            package,
            [engines.load(kind, package, threads=config.threads, max_batch=config.max_batch) for kind in kinds],
        )


class Topic:
    """Lanes hold one model; a topic routes to a model. Every fallback engine has one station that all lanes share."""

    def __init__(
        self, config: TopicConfig, worker: WorkerConfig, model: LoadedModel, metrics: Metrics, clock: Clock
    ) -> None:
        self.config = config
        self.lanes: list[Lane] = []
        self._worker = worker
        self._model = model
        self._metrics = metrics
        self._clock = clock
        self._decoder = Decoder(model.package.spec, config.format, max_event_bytes=worker.max_event_bytes)
        self._rule = DeadlineRule(config.budget_ms, config.deadline, config.event_deadline)
        self._records = metrics.records.labels(config.name)

    async def open_lanes(
        self, count: int, publisher: Publisher, settled: Callable[[], None], stack: AsyncExitStack
    ) -> None:
        """Open and warm `count` lanes' sessions; `stack` closes them. Raises `LoadError`."""
        config, model = self.config, self._model
        desk = DeliveryDesk(
            config,
            publisher=publisher,
            encoder=ScoreEncoder(model.package.name, config.score_format or config.format),
            dead_letter_max_bytes=self._worker.dead_letter_max_bytes,
            metrics=self._metrics,
            clock=self._clock,
        )
        primary, *fallbacks = model.engines
        shared = [await self._station(engine, f"{config.name}-{engine.name}", stack) for engine in fallbacks]
        bounds = LaneBounds(rows=self._worker.inbox_rows, nbytes=self._worker.inbox_bytes)
        for index in range(count):
            name = f"{config.name}-{index}"
            station = await self._station(primary, name, stack)
            publishing = ServiceTime()
            self.lanes.append(
                Lane(
                    name,
                    depth=station.depth,
                    batcher=Batcher(config.max_batch, station.service_time, publishing),
                    dispatcher=Dispatcher([_tier(station), *map(_tier, shared)], self._clock),
                    desk=desk,
                    publishing=publishing,
                    bounds=bounds,
                    clock=self._clock,
                    settled=settled,
                )
            )

    @property
    def lane_rate(self) -> float:
        """Rows a second with which one lane fills its batches within the budget."""
        return self.config.max_batch / (self.config.budget_ms / 1000.0)

    def decode(self, partition: Partition, records: Sequence[Record]) -> Chunk:
        """One poll's records of one partition as a chunk, entered in the partition's ledger."""
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        values = [record.value for record in records]
        offsets = [record.offset for record in records]
        entry = partition.ledger.open(offsets)
        rows = self._decoder.decode(values)
        own_deadlines = rows.deadline_ms
        scorable = records
        if rows.invalid:
            scorable = [records[position] for position in rows.positions.tolist()]
            offsets = [record.offset for record in scorable]
            values = [value or b"" for value in values]
        if self._rule.event_deadline != "ignore" and any(map(_headers, scorable)):
            stated = np.array([header_deadline_ms(record.headers) for record in scorable])
            own_deadlines = np.fmin(own_deadlines, stated)
        timestamps = np.array([record.timestamp for record in scorable], dtype=np.float64)
        self._records.inc(len(records))
        return Chunk(
            topic=self.config.name,
            partition=partition.number,
            records=records,
            rows=rows,
            keys=[record.key for record in scorable],
            offsets=offsets,
            timestamps_ms=timestamps,
            deadlines=self._rule.deadlines(timestamps, own_deadlines, now=now, wall_ms=wall_ms),
            entry=entry,
            fenced=partition.is_fenced,
            nbytes=sum(map(len, values)) + rows.nbytes + RECORD_BYTES * len(records),  # type: ignore[arg-type]
        )

    async def _station(self, engine: Engine, name: str, stack: AsyncExitStack) -> Station:
        station = await Station.open(engine, name=name)
        stack.push_async_callback(station.close, self._worker.drain_timeout_ms / 1000)
        return station

    async def close(self) -> None:
        """Release the engines' weights. The lanes' stations must be closed."""
        for engine in self._model.engines:
            await asyncio.to_thread(engine.close)


def _tier(station: Station) -> Tier:
    return Tier(station.engine_name, station.version, station, station.service_time, station.replace)
