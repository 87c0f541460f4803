"""One input topic at run time: how its records are decoded, timed and classed; its engines and lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.cache import EngineCache
from schemas.decoder import Decoder
from schemas.rows import Tensors
from worker.activity import Activity
from worker.alarms import Alarms
from worker.batch import Chunk, Record
from worker.batcher import UNBOUNDED, Batcher, GiveUp
from worker.chain import Chain
from worker.classes import class_rank
from worker.clock import Clock
from worker.config import Config, TopicConfig
from worker.config_quality import ONE_CLASS
from worker.deadline import DEADLINE_HEADER, DeadlineRule, header_deadline_ms
from worker.delivery import DeliveryDesk
from worker.dispatcher import Dispatcher
from worker.lane import Lane, LaneBounds
from worker.metrics import Metrics
from worker.partition import Partition
from worker.publisher import Sender
from worker.route import RoutePolicy, Router
from worker.scores import ScoreEncoder
from worker.service_time import ServiceTime
from worker.station import Opener, open_session
from worker.troubles import Troubles

RECORD_BYTES: Final = 700
"""Memory of one record beside its value, key and headers: the client's record object, its place in our columns."""

CLASS_HEADER: Final = "class"
"""Record header that names the event's class of service."""

UNKNOWN: Final = -1
"""Rank of a class that there is none of."""

COUNTED_IDS: Final = 1 << 20
"""Ids whose events are counted for a long-tail segment; larger ones share counts."""

_headers = attrgetter("headers")
_key = attrgetter("key")


class Parts(NamedTuple):
    """What a replay puts others in place of."""

    opener: Opener = open_session
    batcher: type[Batcher] = Batcher


REAL: Final = Parts()


class Topic:
    """Lanes hold one model; a topic routes to a model."""

    def __init__(
        self,
        config: TopicConfig,
        whole: Config,
        metrics: Metrics,
        clock: Clock,
        stack: AsyncExitStack,
        cache: EngineCache,
        parts: Parts = REAL,
    ) -> None:
        """`stack` closes what `load` and `open_lanes` open; `cache` has the engines of all topics."""
        self.config = config
        self.lanes: list[Lane] = []
        self.chain = Chain(config, whole.breaker, metrics, clock, stack, cache, parts.opener)
        self._parts = parts
        self.alarms = Alarms(config.name, whole.alarms.policy())
        self.troubles = Troubles(config.name)
        self._worker = whole.worker
        self._classes = tuple(item.policy() for item in whole.classes) or (ONE_CLASS,)
        self._default_rank = class_rank(config.service_class, self._classes, 0)
        self._metrics = metrics
        self._clock = clock
        self._rule = DeadlineRule(config.budget_ms, config.deadline, config.event_deadline)
        self._records = metrics.records.labels(config.name)
        self._segments = [segment.rule() for segment in config.segments]
        self._activity = {rule.name: Activity(COUNTED_IDS) for rule in self._segments if rule.fewer_than is not None}

    async def load(self) -> None:
        """Verify the packages and load the engines. Raises `EngineError`."""
        await self.chain.load()
        spec = self.chain.package.spec
        tables = self.chain.package.open_tables(self._clock.monotonic)
        self._decoder = Decoder(spec, self.config.format, max_event_bytes=self._worker.max_event_bytes, tables=tables)

    async def open_lanes(self, count: int, publisher: Sender, settled: Callable[[], None]) -> None:
        """Open and warm `count` lanes' sessions. Raises `EngineError`."""
        config = self.config
        desk = DeliveryDesk(
            config,
            publisher=publisher,
            encoder=ScoreEncoder(config.score_format or config.format),
            alarms=self.alarms,
            troubles=self.troubles,
            dead_letter_max_bytes=self._worker.dead_letter_max_bytes,
            metrics=self._metrics,
            clock=self._clock,
        )
        router = Router(self._route_policy(), self._activity)
        bounds = LaneBounds(rows=self._worker.inbox_rows, nbytes=self._worker.inbox_bytes)
        for index in range(count):
            name = f"{config.name}-{index}"
            station, chain, segments = await self.chain.open_lane(name)
            publishing = ServiceTime()
            give_up = None
            if config.late == "skip" or config.late == "dead_letter":
                give_up = GiveUp(config.late, chain[-1].service_time)
            lane = Lane(
                name,
                station=station,
                batcher=self._parts.batcher(
                    config.max_batch,
                    self._classes,
                    station.service_time,
                    publishing,
                    give_up,
                    max_rows=UNBOUNDED if len(self._classes) == 1 else self._worker.inbox_rows // 2,
                ),
                dispatcher=Dispatcher(
                    chain, router, self._clock, publishing=publishing, troubles=self.troubles, segments=segments
                ),
                desk=desk,
                publishing=publishing,
                bounds=bounds,
                clock=self._clock,
                settled=settled,
            )
            self.lanes.append(lane)

    @property
    def lane_rate(self) -> float:
        """Rows a second with which one lane fills its batches within the budget."""
        return self.config.max_batch / (self.config.budget_ms / 1000.0)

    def take_in(self, partition: Partition, records: Sequence[Record]) -> None:
        """Decode one poll's records of one partition, enter them in its ledger and offer them to its lane."""
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        values = [record.value for record in records]
        offsets = [record.offset for record in records]
        entry = partition.ledger.open(offsets)
        rows = self._decoder.decode(values)
        own_deadlines = rows.deadline_ms
        ranks: int | NDArray[np.intp] = self._default_rank
        scorable = records
        if rows.invalid:
            scorable = [records[position] for position in rows.positions.tolist()]
            offsets = [record.offset for record in scorable]
            values = [value or b"" for value in values]
        if any(map(_headers, scorable)):
            if self._rule.event_deadline != "ignore":
                own_deadlines = np.fmin(own_deadlines, self._stated(scorable))
            if len(self._classes) > 1:
                ranks = self._ranks(scorable)
        timestamps = np.array([record.timestamp for record in scorable], dtype=np.float64)
        ahead_ms = timestamps.max(initial=0.0) - wall_ms
        if ahead_ms > 0.0:
            self._metrics.skew_seconds.labels(self.config.name).set(ahead_ms / 1000.0)
        self._see(rows.tensors, now)
        self._records.inc(len(records))
        chunk = Chunk(
            topic=self.config.name,
            partition=partition.number,
            records=records,
            rows=rows,
            keys=[record.key for record in scorable],
            offsets=offsets,
            timestamps_ms=timestamps,
            deadlines=self._rule.deadlines(timestamps, own_deadlines, now=now, wall_ms=wall_ms),
            arrived_at=now,
            entry=entry,
            fenced=partition.is_fenced,
            nbytes=sum(map(len, values)) + _beside(records) + rows.nbytes,  # type: ignore[arg-type]
        )
        partition.lane.offer(chunk, ranks)

    def _stated(self, records: Sequence[Record]) -> NDArray[np.float64]:
        """The deadline headers [n], NaN where there is none that can be read."""
        stated = np.array([header_deadline_ms(record.headers) for record in records])
        missing = np.flatnonzero(np.isnan(stated)).tolist()
        self._unreadable(DEADLINE_HEADER, sum(_header(records[i], DEADLINE_HEADER) is not None for i in missing))
        return stated

    def _ranks(self, records: Sequence[Record]) -> NDArray[np.intp]:
        """The classes [n] that the headers name, the topic's own where they name none."""
        named = [_header(record, CLASS_HEADER) for record in records]
        ranks = np.array([class_rank(name, self._classes, UNKNOWN) for name in named], dtype=np.intp)
        unknown = np.flatnonzero(ranks == UNKNOWN)
        self._unreadable(CLASS_HEADER, sum(named[i] is not None for i in unknown.tolist()))
        ranks[unknown] = self._default_rank
        return ranks

    def _unreadable(self, header: str, records: int) -> None:
        if records:
            self._metrics.unreadable_headers.labels(self.config.name, header).inc(records)

    def _see(self, tensors: Tensors, now: float) -> None:
        for rule in self._segments:
            if rule.name in self._activity:
                self._activity[rule.name].see(rule.ids(tensors), now)

    def _route_policy(self) -> RoutePolicy:
        config = self.config
        above: dict[str, float] = {}
        if not isinstance(config.primary_above_ms, str):
            # At 0 even an event without any budget left has the primary first.
            above[config.engine] = config.primary_above_ms / 1000 or -np.inf
        return RoutePolicy(above_s=above, late=config.late, segments=tuple(self._segments))


def _header(record: Record, name: str) -> bytes | None:
    return next((value for found, value in record.headers if found == name), None)


def _beside(records: Sequence[Record]) -> int:
    """Memory of the records beside their values, bytes."""
    nbytes = RECORD_BYTES * len(records) + sum(map(len, filter(None, map(_key, records))))
    for headers in filter(None, map(_headers, records)):
        nbytes += sum(len(name) + len(value or b"") for name, value in headers)
    return nbytes
