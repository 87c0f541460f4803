"""The engines of one topic: the primary, its fallbacks, the segments' own; loaded, in stations, guarded."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import engines
from engines.base import Engine
from engines.cache import EngineCache, EngineKey, Lease
from engines.errors import EngineError, LoadError
from engines.package import Package
from worker.breaker import Transition
from worker.breakers import Breakers, Observer
from worker.clock import Clock
from worker.config import TopicConfig, WorkerConfig
from worker.config_quality import BreakerConfig
from worker.metrics import Metrics
from worker.outcome import Tier
from worker.segments import misfits
from worker.station import Opener, Station

log = logging.getLogger("scorelane.chain")

CLOSE_S: Final = 10.0
"""For a session's last batch; one that takes longer is left behind."""


def engine_cache(worker: WorkerConfig) -> EngineCache:
    """For all chains of a process."""
    return EngineCache(worker.max_weights_bytes, setting="worker.max_weights_bytes")


class _Shared(NamedTuple):
    """An engine in the one station that all lanes share."""

    name: str
    package: Package
    station: Station


class Chain:
    """Each lane has a station of the primary engine of its own; every other engine has one that all lanes share.

    Engines are leased from the process's cache, so that topics and segments with the same package, kind and options
    share one. Everything that is opened is closed by `stack`: the sessions, then the leases. Where a session was left
    behind hung the leases stay, since to unload under it could hang too.
    """

    def __init__(
        self,
        topic: TopicConfig,
        breaker: BreakerConfig,
        metrics: Metrics,
        clock: Clock,
        stack: AsyncExitStack,
        cache: EngineCache,
        opener: Opener,
    ) -> None:
        self.package: Package
        """Of the topic's model; there after `load`."""
        self.breakers: dict[str, Breakers] = {}
        """By engine, the segments' too; the last one of the chain has none."""
        self._topic = topic
        self._stack = stack
        self._cache = cache
        self._leases = ExitStack()
        self._clock = clock
        self._opener = opener
        self._kinds = list(dict.fromkeys((topic.engine, *topic.fallback)))
        self._primary: Engine | None = None
        self._stations: list[Station] = []
        self._cold: list[Station] = []
        self._shared: list[_Shared] = []
        self._segments: list[_Shared] = []
        for name in (*self._kinds[:-1], *(segment.engine_name for segment in topic.segments)):
            self.breakers[name] = Breakers(breaker.policy(topic.budget_ms / 1000), _teller(topic.name, name, metrics))

    @property
    def primary_breakers(self) -> Breakers | None:
        """None where no other engine could answer in its place."""
        return self.breakers.get(self._kinds[0])

    @property
    def gone(self) -> str | None:
        """Which engine only a new process brings back, and why; None where there is none."""
        for engine, breakers in self.breakers.items():
            if breakers.lost:
                return f"engine {engine}: the device was lost"
        return next((f"engine {station.name}: {station.gone}" for station in self._stations if station.gone), None)

    async def load(self) -> None:
        """Verify the packages and load the engines, the primary too unless it may come later. Raises `EngineError`."""
        topic = self._topic
        self._stack.callback(self._end_leases)
        self.package = await asyncio.to_thread(Package.open, Path(topic.model))
        for kind in self._kinds[1:]:
            self._shared.append(await self._in_service(kind, self.package, kind, f"{topic.name}-{kind}"))
        for segment in topic.segments:
            package = await asyncio.to_thread(Package.open, Path(segment.model))
            for key, value, problem, remedy in misfits(segment, self.package.spec, package.spec):
                raise LoadError(f"segment {segment.name}: {key}: {value}: {problem}; {remedy}")
            station = f"{topic.name}-{segment.name}"
            self._segments.append(await self._in_service(segment.engine, package, segment.engine_name, station))
        if topic.cold_start == "wait":
            lease = self._lease(self._kinds[0], self.package)
            self._primary = await asyncio.to_thread(lease.open)

    async def open_lane(self, lane: str) -> tuple[Station, list[Tier], list[Tier]]:
        """The lane's station of the primary engine, its chain, and the segments' engines. Raises `EngineError`."""
        station = self._station(lane)
        if self._primary is not None:
            await station.open(self._primary, self.package.spec.tensors, self._topic.max_batch)
        else:
            self._cold.append(station)
        primary = self._tier(self._kinds[0], self.package, station, lane)
        shared = [self._tier(name, package, shared, lane) for name, package, shared in self._shared]
        segments = [self._tier(name, package, shared, lane) for name, package, shared in self._segments]
        return station, [primary, *shared], segments

    async def warm_up(self) -> None:
        """Load the primary engine that was left cold and open every lane's session. A failure leaves the fallbacks."""
        if not self._cold:
            return
        lease = self._lease(self._kinds[0], self.package)
        try:
            engine = await asyncio.to_thread(lease.open)
            for station in self._cold:
                await station.open(engine, self.package.spec.tensors, self._topic.max_batch)
        except EngineError as error:
            if not any(station.warm or station.left_behind for station in self._cold):
                lease.close()
            log.error("topic %s: the primary engine stays cold, fallbacks answer: %s", self._topic.name, error)
        else:
            log.info("topic %s: the primary engine %s is warm", self._topic.name, self._kinds[0])

    async def _in_service(self, kind: str, package: Package, name: str, station: str) -> _Shared:
        lease = self._lease(kind, package)
        engine = await asyncio.to_thread(lease.open)
        shared = self._station(station)
        await shared.open(engine, package.spec.tensors, self._topic.max_batch)
        return _Shared(name, package, shared)

    def _station(self, name: str) -> Station:
        station = Station(name, self._opener, self._clock)
        self._stations.append(station)
        self._stack.push_async_callback(station.close, CLOSE_S)
        return station

    def _lease(self, kind: str, package: Package) -> Lease:
        """For as long as the chain lives. `open` it on a thread: it raises `LoadError`, `OutOfMemory`."""
        topic = self._topic
        options: dict[str, Any] = {"max_batch": topic.max_batch}
        if kind in engines.THREADED:
            options["threads"] = topic.threads
        if kind == "trt":
            options["device"] = int(topic.device) if topic.device.isdigit() else topic.device
        key = EngineKey(kind, package.path.resolve(), package.digest, tuple(sorted(options.items())))
        lease = self._cache.lease(key, partial(engines.load, kind, package, **options))
        self._leases.callback(lease.close)
        return lease

    def _end_leases(self) -> None:
        if not any(station.left_behind for station in self._stations):
            self._leases.close()

    def _tier(self, name: str, package: Package, station: Station, lane: str) -> Tier:
        breakers = self.breakers.get(name)
        return Tier(
            engine=name,
            model=package.name,
            version=package.version,
            runs=station,
            service_time=station.service_time,
            hung=station.replace,
            breaker=breakers.open_lane(lane) if breakers is not None else None,
        )


def _teller(topic: str, engine: str, metrics: Metrics) -> Observer:
    def tell(lane: str, move: Transition) -> None:
        metrics.breaker_moves.labels(topic, engine, move.after.value, move.cause.value).inc()
        log.warning("lane %s: %s: breaker %s -> %s: %s", lane, engine, move.before, move.after, move.cause)

    return tell
