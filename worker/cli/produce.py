"""scorelane produce"""

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from schemas.wire import Format
from worker.cli.client import client_args, connection_options, partitions_of, quiet, started
from worker.cli.loop import run_until_signal
from worker.cli.number import Number
from worker.cli.openloop import OpenLoop
from worker.cli.rows import choose, events
from worker.config import Config, TopicConfig

CHUNK = 500
"""Most events between two looks at the clock and at signals."""
TICK_S = 0.005
FLUSH_TIMEOUT_S = 30.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--topic", required=True, help="Topic to publish to.")
@connection_options
@click.option(
    "--model",
    "model",
    metavar="PATH",
    help="How a row becomes an event: a model package, a spec file, or one of criteo, avazu, alimama, tipping, ad.  "
    "[default: the model of the topic in --config; without it the lines of a JSONL file are sent as they are]",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["msgpack", "json"]),
    help="[default: the format of the topic in --config, else msgpack]",
)
@click.option("--as-is", is_flag=True, help="Send the lines of a JSONL file as they are, whatever they hold.")
@click.option("--rate", type=Number(0), default=0.0, help="Events a second, open loop.  [default: no limit]")
@click.option("--count", type=click.IntRange(1), help="Stop after so many events.")
@click.option("--loop", "endless", is_flag=True, help="Begin again at the end of the file.")
def produce(
    file: Path,
    topic: str,
    config_path: Path | None,
    bootstrap: str | None,
    model: str | None,
    format_: Format | None,
    as_is: bool,
    rate: float,
    count: int | None,
    endless: bool,
) -> int:
    """Publish the rows of FILE as events: CSV with a header, or JSONL (.jsonl, .ndjson, .json).

    In CSV a list is a JSON array in its cell, or one column for each element, all with the field's name.

    Rows that have none of the model's fields, or lack one without default, are refused. Other columns are left out,
    with a warning.

    With --rate the load is open loop: the record's timestamp is when the event was due, so that the worker's
    deadlines count from there. Ctrl-C ends it with the totals. Exit code 1 when an event was not acknowledged.
    """
    args = client_args(config_path, bootstrap)
    quiet()
    configured = None if config_path is None else _configured(topic, config_path, model or format_ or as_is)
    source = events(file, choose(model, format_, as_is, configured, config_path))

    def values() -> Iterator[bytes]:
        passes = itertools.count() if endless else range(1)
        every = itertools.chain.from_iterable(source() for _ in passes)
        return itertools.islice(every, count)

    if next(source(), None) is None:
        raise click.ClickException(f"{file}: no rows; give a CSV file with a header and rows, or JSONL")
    totals = run_until_signal(lambda stop: _publish(args, topic, values(), rate, stop))
    click.echo(str(totals))
    return 1 if totals.acknowledged < totals.sent else 0


@dataclass(slots=True)
class Totals:
    sent: int = 0
    acknowledged: int = 0
    bytes: int = 0
    seconds: float = 0.0
    behind_s: float = 0.0
    """Most that an event was sent after it was due."""
    error: str = ""
    """The first failure."""

    def __str__(self) -> str:
        rate = self.sent / self.seconds if self.seconds else 0.0
        text = f"{self.sent} events sent, {self.acknowledged} acknowledged, {self.sent - self.acknowledged} failed"
        text += f", {self.bytes} bytes in {self.seconds:.1f} s, {rate:.0f} events/s"
        text += f", at most {self.behind_s * 1000:.0f} ms after their time" if self.behind_s else ""
        return f"{text}; first failure: {self.error}" if self.error else text


def _configured(topic: str, config_path: Path, told: object) -> TopicConfig | None:
    """None, and one line that says so, where the topic is not in the configuration, which then does not say what to
    send: unless `told` the options do, or it is a `UsageError`."""
    topics = {one.name: one for one in Config.load(config_path, os.environ).topics}
    if topic not in topics:
        text = f"--topic {topic}: not in {config_path}, which has {', '.join(topics)}"
        if not told:
            raise click.UsageError(f"{text}; give one of them, or what to send with --model or --as-is")
        click.echo(f"scorelane: warning: {text}", err=True)
    return topics.get(topic)


async def _publish(
    args: dict[str, Any], topic: str, values: Iterator[bytes], rate: float, stop: asyncio.Event
) -> Totals:
    from aiokafka import AIOKafkaProducer

    count = await partitions_of(topic, args)
    producer = AIOKafkaProducer(**args, acks="all", max_batch_size=262_144, linger_ms=2, compression_type=None)
    totals = Totals()

    def settled(future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        if error := future.exception():
            totals.error = totals.error or f"{type(error).__name__}: {error}"
        else:
            totals.acknowledged += 1

    async with started(producer, args):
        begin = time.time()
        schedule = OpenLoop(begin, rate) if rate else None
        more = True
        while more and not stop.is_set():
            now = time.time()
            due = min(CHUNK, schedule.due(now) - totals.sent) if schedule else CHUNK
            chunk = list(itertools.islice(values, due))
            more = len(chunk) == due
            for value in chunk:
                intended = schedule.intended(totals.sent) if schedule else now
                totals.behind_s = max(totals.behind_s, now - intended)
                future = await producer.send(
                    topic, value, partition=totals.sent % count, timestamp_ms=int(intended * 1000)
                )
                future.add_done_callback(settled)
                totals.sent += 1
                totals.bytes += len(value)
            if schedule and more:
                # Not less than a tick, so that a high rate is sent in chunks and not in wake-ups.
                await asyncio.sleep(max(TICK_S, schedule.intended(totals.sent) - time.time()) if due < CHUNK else 0)
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await producer.flush()
        except TimeoutError:
            totals.error = totals.error or f"no acknowledgement in {FLUSH_TIMEOUT_S:g} s"
        # The callbacks of the last acknowledgements run in the next turn of the loop.
        await asyncio.sleep(0)
        totals.seconds = time.time() - begin
    return totals
