"""The whole life of a worker: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager

from engines.errors import EngineError, LoadError
from worker.admin import Admin
from worker.alarm_desk import AlarmDesk
from worker.chain import CLOSE_S, engine_cache
from worker.clock import Clock, SystemClock
from worker.config import Config
from worker.consumer import Consumer
from worker.errors import ConsumerFailed, DrainIncomplete, EngineGone, WorkerError
from worker.fetching import LEAVE_S, client_of
from worker.gauges import watch
from worker.health import Facts, not_live, not_ready
from worker.interpreter import SWITCH_INTERVAL_S, settle_collector
from worker.joining import Joining
from worker.lane import Lane
from worker.memory import lock_memory
from worker.metrics import Metrics
from worker.publisher import Publisher
from worker.resets import Resets
from worker.shutdown import bounded, unless
from worker.topic import Topic
from worker.webhook import WebhookError

log = logging.getLogger("scorelane.service")

WATCH_INTERVAL_S = 1.0


async def serve(config: Config, *, member: int = 0) -> None:
    """Run one member of the group until SIGTERM or SIGINT, then drain and leave. A second signal skips the drain; one
    that comes before all is ready skips the rest of the start.

    `member` is its number under `--processes`. Raises `WorkerError`, with nothing unfinished committed, and
    `LoadError` for a model that is missing or incomplete.
    """
    stop = asyncio.Event()
    force = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        (force if stop.is_set() else stop).set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, signalled)
    try:
        await Service(config, member, SystemClock()).run(stop, force)
    except BaseExceptionGroup as group:
        _, bugs = group.split(WorkerError)
        if bugs is not None:
            raise
        raise _first(group) from group
    finally:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)


class Service:
    def __init__(self, config: Config, member: int, clock: Clock) -> None:
        self._config = config
        self._member = member
        self._clock = clock
        self._metrics = Metrics()
        self._consumer: Consumer | None = None
        self._topics: dict[str, Topic] = {}
        self._engines = engine_cache(config.worker)
        self._joining: Joining | None = None
        self._alarms: AlarmDesk | None = None
        self._gone: EngineGone | None = None
        self._warm = False
        self._ready = False
        self._draining = False

    async def run(self, stop: asyncio.Event, force: asyncio.Event) -> None:
        """Start, serve until `stop`, drain until done or `force`. What was started is stopped in reverse order."""
        async with AsyncExitStack() as stack:
            started = await unless(stop, self._start(stack))
            if started is None:
                log.info("stopped before it was ready")
                return
            publisher, consumer, alarms = started
            try:
                await self._serve(publisher, consumer, alarms, stop, force)
            except BaseException:
                await consumer.abort()
                raise
            finally:
                self._tell_troubles(ending=True)
        log.info("stopped")
        if self._gone is not None:
            raise self._gone
        if consumer.left:
            raise DrainIncomplete(f"not drained: {'; '.join(consumer.left)}")

    async def _start(self, stack: AsyncExitStack) -> tuple[Publisher, Consumer, AlarmDesk]:
        config, worker = self._config, self._config.worker
        admin = self._admin()
        port = await admin.start()
        stack.push_async_callback(admin.stop)
        log.info("admin listens on %s:%d", config.admin.host, port)
        await self._load(stack)
        alarms = self._alarms = AlarmDesk(config.alarms, self._topics, self._metrics, self._clock)
        publisher = Publisher(config.kafka, worker)
        stack.push_async_callback(publisher.stop, LEAVE_S)
        await publisher.start()
        client = client_of(config.kafka, self._member)
        Resets(client, self._metrics).watch()
        consumer = self._consumer = Consumer(client, config.kafka, worker, self._topics, self._metrics, self._clock)
        stack.push_async_callback(consumer.close)
        await self._open_lanes(publisher, consumer)
        if worker.lock_memory:
            lock_memory()
        self._warm = True
        settle_collector()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        await self._join(consumer)
        return publisher, consumer, alarms

    async def _join(self, consumer: Consumer) -> None:
        joining = self._joining = Joining(self._config.kafka, self._clock.monotonic())
        telling = asyncio.create_task(self._tell(joining), name="joining")
        longest_s = joining.longest_s(self._config.worker.stall_timeout_ms / 1000)
        try:
            await asyncio.wait_for(consumer.start(), longest_s)
        except TimeoutError:
            raise joining.failed(self._clock.monotonic()) from None
        finally:
            telling.cancel()
        self._joining = None

    async def _tell(self, joining: Joining) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if line := joining.due(self._clock.monotonic()):
                log.info(line)

    async def _load(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._unload)
        for config in self._config.topics:
            topic = Topic(config, self._config, self._metrics, self._clock, stack, self._engines)
            self._topics[config.name] = topic
            with _starting(config.name):
                await topic.load()
            package = topic.chain.package
            log.info("topic %s: model %s version %s loaded", config.name, package.name, package.version)

    async def _unload(self) -> None:
        # A start that was given up may be loading still.
        await bounded(asyncio.to_thread(self._engines.close), CLOSE_S, "unloading the engines")

    async def _open_lanes(self, publisher: Publisher, consumer: Consumer) -> None:
        outputs = {name: (topic.config.scores, topic.config.dead_letters) for name, topic in self._topics.items()}
        # The alarms' too: found missing now rather than when something is wrong already.
        names = [*outputs, *(output for both in outputs.values() for output in both), self._config.alarms.topic]
        counts = await publisher.partition_counts(filter(None, names))
        for name, topic in self._topics.items():
            partitions = counts[name]
            for output in outputs[name]:
                if counts[output] < partitions:
                    log.warning("topic %s has fewer partitions than %s; scores share them, in order", output, name)
            with _starting(name):
                await topic.open_lanes(min(self._config.worker.lanes, partitions), publisher, consumer.settled)

    async def _serve(
        self,
        publisher: Publisher,
        consumer: Consumer,
        alarms: AlarmDesk,
        stop: asyncio.Event,
        force: asyncio.Event,
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(consumer.run(), name="poll")
            background = [
                tasks.create_task(consumer.committer.run(self._config.worker.commit_interval_ms / 1000), name="commit"),
                tasks.create_task(consumer.rebind(), name="rebind"),
                tasks.create_task(self._watch(stop), name="watch"),
                tasks.create_task(alarms.run(publisher), name="alarms"),
                tasks.create_task(self._warm_up(), name="warm-up"),
                *(tasks.create_task(lane.run(), name=lane.name) for lane in self._lanes()),
            ]
            await stop.wait()
            self._draining = True
            log.info("draining %d records", consumer.held)
            polling.cancel()
            leaving = tasks.create_task(consumer.leave(), name="leave")
            forced = tasks.create_task(force.wait(), name="force")
            await asyncio.wait({leaving, forced}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                log.warning("second signal: leaving %d records unfinished", consumer.held)
                leaving.cancel()
                await consumer.abort()
            for task in (forced, *background):
                task.cancel()

    async def _warm_up(self) -> None:
        # One after the other, as loads go anyway: those that wait would hold the threads that others need.
        for topic in self._topics.values():
            await topic.chain.warm_up()

    def _tell_readiness(self) -> None:
        against = self._not_ready()
        if self._ready is bool(against):
            self._ready = not against
            self._metrics.ready.set(float(self._ready))
            log.info("ready" if self._ready else f"not ready: {against[0]}")

    def _tell_troubles(self, *, ending: bool = False) -> None:
        for topic in self._topics.values():
            topic.troubles.tell(self._clock.monotonic(), ending=ending)

    async def _watch(self, stop: asyncio.Event) -> None:
        """End the process when it makes no progress (a stuck group member is healthy to everyone else), and drain it
        when an engine is gone for good: the lanes go on with the fallback engines until then."""
        while True:
            self._tell_readiness()
            self._tell_troubles()
            if against := self._not_live():
                raise ConsumerFailed(f"{against[0]}; the process ends so that it is started again")
            for name, topic in self._topics.items():
                if self._gone is None and (gone := topic.chain.gone):
                    self._gone = EngineGone(f"topic {name}: {gone}; start the process again")
                    stop.set()
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _admin(self) -> Admin:
        admin, metrics = self._config.admin, self._metrics
        watch(metrics, self._topics, self._engines, lambda: self._consumer.lag() if self._consumer is not None else [])
        return Admin(
            admin.host,
            admin.port + self._member if admin.port else 0,
            live=self._not_live,
            ready=self._not_ready,
            receive=self._receive,
            metrics=metrics,
        )

    def _receive(self, headers: Mapping[str, str], body: bytes) -> str:
        if self._alarms is None:
            raise WebhookError(503, "the worker is starting; send it again")
        return self._alarms.receive(headers, body)

    def _facts(self) -> Facts:
        now = self._clock.monotonic()
        consumer = self._consumer
        if consumer is None:
            return Facts(False, self._draining, None, 0, now, now)
        return Facts(
            warm=self._warm,
            draining=self._draining,
            assigned_since=consumer.assigned_since,
            held=consumer.held,
            last_poll=consumer.last_poll,
            last_settled=consumer.last_settled,
            unacknowledged_s=max((lane.unacknowledged_s for lane in self._lanes()), default=0.0),
            uncommitted_s=consumer.committer.failing_s,
            joining=self._joining.told(now) if self._joining is not None else "",
        )

    def _not_live(self) -> list[str]:
        return not_live(self._facts(), self._clock.monotonic(), self._config.worker.stall_timeout_ms / 1000)

    def _not_ready(self) -> list[str]:
        worker = self._config.worker
        stall_s, publish_s = worker.stall_timeout_ms / 1000, worker.publish_timeout_ms / 1000
        return not_ready(self._facts(), self._clock.monotonic(), stall_s, publish_s)

    def _lanes(self) -> Iterator[Lane]:
        return (lane for topic in self._topics.values() for lane in topic.lanes)


@contextmanager
def _starting(topic: str) -> Iterator[None]:
    """What an engine raises, with the topic's name. A `LoadError` stays one: the next start would end the same way."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"topic {topic}: {error}") from error
    except EngineError as error:
        raise WorkerError(f"topic {topic}: {error}") from error


def _first(group: BaseExceptionGroup[BaseException]) -> WorkerError:
    """The error to show of a group: the first leaf."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WorkerError)
    return error
