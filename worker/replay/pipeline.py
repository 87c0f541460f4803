"""One topic of a worker, put together as the service does it, with a broker in memory and modelled devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from worker.alarm_desk import AlarmDesk
from worker.batcher import Batcher
from worker.breaker import Transition
from worker.chain import engine_cache
from worker.classes import ClassPolicy
from worker.config import Config
from worker.config_quality import ONE_CLASS
from worker.consumer import Consumer
from worker.metrics import Metrics, counts
from worker.replay.broker import Costs, MemoryClient, MemoryPublisher
from worker.replay.clock import ReplayClock
from worker.replay.device import Devices, Pace
from worker.replay.faults import Fault
from worker.replay.report import Report, alarm_report, breaker_report, class_report
from worker.replay.script import Script, script
from worker.replay.tally import Move, Tally
from worker.replay.trace import Trace
from worker.replay.virtual_loop import VirtualLoop
from worker.station import Opener, open_session
from worker.topic import Parts, Topic

ALARMS = "alarms"
"""Topic for alarms where the configuration names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is played, and on what."""

    config: Config
    """With the topic that is played, and it alone."""
    trace: Trace
    speed: float = 1.0
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """Kind of engine -> how long it takes. Empty: the real sessions take their own time, on a real clock only."""
    faults: Sequence[Fault] = ()
    costs: Costs = field(default_factory=Costs)
    batcher: type[Batcher] = Batcher
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a replay, in numbers and for each event."""

    report: Report
    script: Script
    tally: Tally


def play(scene: Scene, clock: Literal["simulated", "real"] = "simulated") -> Played:
    """Replay to the end, drain included. In simulated time the same scene has the same result, to the last byte.

    Raises `EngineError` and `WorkerError` as the worker does, `ValueError` for faults that make no sense.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] = VirtualLoop if clock == "simulated" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_play(scene))


async def _play(scene: Scene) -> Played:
    (config,) = scene.config.topics
    whole = scene.config
    if not whole.alarms.topic:
        alarms = msgspec.structs.replace(whole.alarms, topic=ALARMS)
        whole = msgspec.structs.replace(whole, alarms=alarms)
    clock = ReplayClock(scene.trace.start_ms, scene.faults)
    devices = Devices(scene.paces, config.engine, scene.faults, clock, scene.seed)
    opener: Opener = devices.open if scene.paces else open_session
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        cache = engine_cache(whole.worker)
        stack.callback(cache.close)
        topic = Topic(config, whole, metrics, clock, stack, cache, Parts(opener, scene.batcher))
        await topic.load()
        trace = scene.trace
        played = script(trace, scene.speed, trace.start_ms, config, classes_of(whole), topic.chain.package)
        tally = Tally(
            [len(partition) for partition in played.partitions],
            config.scores,
            config.dead_letters,
            whole.alarms.topic,
            config.score_format or config.format,
        )
        client = MemoryClient(config.name, played.partitions, clock, scene.costs)
        consumer = Consumer(client, whole.kafka, whole.worker, {config.name: topic}, metrics, clock)
        publisher = MemoryPublisher(tally.receive, clock, scene.costs)
        progress = asyncio.Event()

        def settled() -> None:
            consumer.settled()
            progress.set()

        await topic.open_lanes(min(whole.worker.lanes, scene.trace.partitions), publisher, settled)
        for engine, breakers in topic.chain.breakers.items():
            breakers.observe(partial(_moved, tally, clock, engine))
        desk = AlarmDesk(whole.alarms, {config.name: topic}, metrics, clock)
        clock.begin()
        await consumer.start()
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(consumer.committer.run(whole.worker.commit_interval_ms / 1000)),
                tasks.create_task(consumer.rebind()),
                tasks.create_task(desk.run(publisher)),
                tasks.create_task(topic.chain.warm_up()),
                *(tasks.create_task(lane.run()) for lane in topic.lanes),
                *(tasks.create_task(_pause(fault, clock)) for fault in scene.faults if fault.kind == "pause"),
            ]
            polling = tasks.create_task(consumer.run())
            await client.exhausted.wait()
            while consumer.held:
                progress.clear()
                async with asyncio.timeout(whole.worker.stall_timeout_ms / 1000):
                    await progress.wait()
            polling.cancel()
            await consumer.leave()
            for task in background:
                task.cancel()
        uncommitted = sum(end - client.committed.get(tp, 0) for tp, end in client.ends.items())
        report = _report(whole, played, tally, metrics, clock.elapsed, uncommitted, devices.opened)
    return Played(report, played, tally)


def classes_of(config: Config) -> tuple[ClassPolicy, ...]:
    """The classes of service, the highest first."""
    return tuple(item.policy() for item in config.classes) or (ONE_CLASS,)


async def _pause(fault: Fault, clock: ReplayClock) -> None:
    await asyncio.sleep(clock.at(fault.start_s) - clock.monotonic())
    clock.spend(fault.stop_s - fault.start_s)


def _moved(tally: Tally, clock: ReplayClock, engine: str, lane: str, transition: Transition) -> None:
    tally.moves.append(Move(clock.elapsed, lane, engine, transition))


def _report(
    config: Config, played: Script, tally: Tally, metrics: Metrics, seconds: float, uncommitted: int, sessions: int
) -> Report:
    batches = counts(metrics.batches, "closed_by")
    scored = sum(counts(metrics.scores, "engine").values())
    return Report(
        events=len(played.due),
        seconds=round(seconds, 6),
        duplicates=tally.duplicates,
        uncommitted=uncommitted,
        classes=[
            class_report(policy.name, played.ranks == rank, played, tally)
            for rank, policy in enumerate(classes_of(config))
        ],
        batches=dict(sorted(batches.items())),
        rows_a_batch=round(scored / max(1, sum(batches.values())), 3),
        sessions=sessions,
        breaker=breaker_report(tally),
        alarms=alarm_report(tally),
    )
