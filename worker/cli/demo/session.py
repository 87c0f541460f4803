"""The running demo: topics, traffic, observation and view around a worker that is already started."""

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rich.live import Live

from worker.cli import client
from worker.cli.client import started, started_admin
from worker.cli.demo import view
from worker.cli.demo.observer import Observed, observe
from worker.cli.demo.traffic import Sent, Source, send
from worker.cli.demo.view import Row
from worker.cli.demo.worker_process import WorkerProcess
from worker.cli.loop import wait_for_stop
from worker.errors import WorkerError
from worker.refusals import create_remedy

PARTITIONS = 4
"""Of each topic. The embedded broker takes longer for a fetch the more records a partition holds; more partitions cost
latency, since it answers one request a connection at a time."""
MOST_BYTES = 1 << 30
"""Values sent to the embedded broker, which keeps them all in memory, before the demo ends by itself."""
CATCH_UP_S = 15.0
LINE_EVERY = 2
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Show:
    """What to do. `seconds` None is until a signal; `embedded` bounds the bytes; `rate` is of each topic."""

    bootstrap: str
    sources: Sequence[Source]
    rate: float
    seconds: float | None
    embedded: bool

    @property
    def args(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.bootstrap.split(","), "client_id": "scorelane-demo"}

    @property
    def topics(self) -> list[str]:
        """Every topic of the demo."""
        return [f"{source.topic}{suffix}" for source in self.sources for suffix in ("", ".scores", ".dead")]


@dataclass(frozen=True, slots=True)
class Played:
    """What happened, and for how many seconds events were sent."""

    rows: list[Row]
    seconds: float


async def create_topics(show: Show) -> None:
    """Raises `WorkerError` when brokers refuse one."""
    async with started_admin(show.args) as admin:
        refused = await client.create_topics(admin, dict.fromkeys(show.topics, PARTITIONS))
    for topic, error in refused.items():
        raise WorkerError(f"topic {topic}: not created: {error}; {create_remedy(error, topic)}")


async def delete_topics(show: Show) -> None:
    """Leave nothing on somebody's broker."""
    async with started_admin(show.args) as admin:
        await admin.delete_topics(show.topics)


async def play(show: Show, worker: WorkerProcess, say: Callable[[str], None], stop: asyncio.Event) -> Played | None:
    """Wait for the worker, send events and show their scores until the end. None when stopped before it was ready."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    rows = [Row(source, Sent(), Observed()) for source in show.sources]
    outputs = {f"{row.source.topic}.scores": row.observed for row in rows}
    begin = time.monotonic()
    await worker.ready(stop)
    if stop.is_set():
        return None
    say(f"worker ready after {time.monotonic() - begin:.1f} s, metrics at http://127.0.0.1:{worker.port}/metrics")
    async with AsyncExitStack() as stack:
        consumer = AIOKafkaConsumer(
            **show.args, group_id=None, auto_offset_reset="earliest", fetch_max_wait_ms=20 if show.embedded else 100
        )
        await stack.enter_async_context(started(consumer, show.args))
        consumer.assign([TopicPartition(topic, p) for topic in outputs for p in range(PARTITIONS)])
        producer = AIOKafkaProducer(**show.args, acks="all", linger_ms=0, max_batch_size=262_144)
        await stack.enter_async_context(started(producer, show.args))
        seen = asyncio.Event()
        # The view is drawn in a thread; it may hold up the clock of the measurement by this much, not by 5 ms.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        begin = time.monotonic()
        most_bytes = MOST_BYTES if show.embedded else 1 << 62
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(observe(consumer, outputs, seen))
            senders = [
                tasks.create_task(send(row.source, producer, PARTITIONS, show.rate, most_bytes, stop, row.sent))
                for row in rows
            ]
            await _watch(show, rows, worker, stop, senders)
            stop.set()
            await asyncio.wait(senders)
            seconds = time.monotonic() - begin
            await producer.flush()
            await _catch_up(rows, worker)
            seen.set()
    return Played(rows, seconds)


async def _watch(
    show: Show, rows: list[Row], worker: WorkerProcess, stop: asyncio.Event, senders: list[asyncio.Task[None]]
) -> None:
    """Draw once a second until the time is over, a signal comes, or a sender has ended."""
    begin = time.monotonic()
    last = begin
    screen = Live(auto_refresh=False, transient=True) if sys.stdout.isatty() else None
    with screen or _Lines():
        for tick in itertools.count(1):
            left = show.seconds - (time.monotonic() - begin) if show.seconds is not None else 1.0
            if left <= 0 or await wait_for_stop(stop, min(1.0, left)) or any(task.done() for task in senders):
                return
            if worker.process.poll() is not None:
                raise WorkerError(f"the worker ended with {worker.process.returncode}: {worker.last_words()}")
            samples = await worker.metrics()
            now = time.monotonic()
            for row in rows:
                row.measure(samples)
                row.tick(now - last)
            last = now
            elapsed = f"{now - begin:.0f} s" + (f" of {show.seconds:g} s" if show.seconds is not None else "")
            if screen is not None:
                head = f"scorelane demo, {elapsed}, broker {show.bootstrap} (Ctrl-C ends)"
                await asyncio.to_thread(_draw, screen, rows, head)
            elif tick % LINE_EVERY == 0:
                sys.stdout.write("".join(f"{elapsed}  {view.line(row)}\n" for row in rows))
                sys.stdout.flush()


def _draw(screen: Live, rows: list[Row], head: str) -> None:
    screen.update(view.live(rows, head), refresh=True)


async def _catch_up(rows: list[Row], worker: WorkerProcess) -> None:
    """Wait until every acknowledged event has its score or is a dead letter, within a bound."""
    until = time.monotonic() + CATCH_UP_S
    while time.monotonic() < until and worker.process.poll() is None:
        samples = await worker.metrics()
        for row in rows:
            row.measure(samples)
        if all(row.missing <= row.dead_letters for row in rows):
            return
        await asyncio.sleep(0.1)


class _Lines:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None
