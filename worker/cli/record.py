"""scorelane record"""

import asyncio
import time
from pathlib import Path
from typing import Any

import click

from worker.cli.client import client_args, connection_options, partitions_of, quiet, started
from worker.cli.loop import run_until_signal
from worker.cli.number import Number

POLL_MS = 200


@click.command()
@click.argument("topic")
@connection_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The trace, a new file.")
@click.option("--force", is_flag=True, help="Overwrite the file if it is there.")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest records, not with the next ones.")
@click.option("--max", "most", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--seconds", type=Number(0, min_open=True), help="Stop after so long.")
def record(
    topic: str,
    config_path: Path | None,
    bootstrap: str | None,
    out: Path,
    force: bool,
    from_beginning: bool,
    most: int | None,
    seconds: float | None,
) -> int:
    """Write the records of TOPIC to a file that `scorelane replay` plays: keys, values, headers and timestamps.

    Reads all partitions outside of any group, so that it disturbs nobody. Ctrl-C ends it; what was read is kept.
    """
    from worker.replay.trace import TraceError

    args = client_args(config_path, bootstrap)
    quiet()
    try:
        count = run_until_signal(lambda stop: _record(args, topic, out, force, from_beginning, most, seconds, stop))
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{count} records of {topic} in {out}")
    return 0


async def _record(
    args: dict[str, Any],
    topic: str,
    out: Path,
    force: bool,
    from_beginning: bool,
    most: int | None,
    seconds: float | None,
    stop: asyncio.Event,
) -> int:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    from worker.fetching import keep_records_bare
    from worker.replay.trace import FORMAT, TraceHead, TraceRecord, TraceWriter

    partitions = await partitions_of(topic, args)
    until = time.monotonic() + (seconds or float("inf"))
    count = 0
    with TraceWriter(out, TraceHead(FORMAT, topic, partitions), force=force) as writer:
        # Not before the file is there: a consumer that is never started complains at its end.
        consumer = AIOKafkaConsumer(
            **args,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest" if from_beginning else "latest",
        )
        async with started(consumer, args):
            keep_records_bare(consumer)
            consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
            while not stop.is_set() and count != most and time.monotonic() < until:
                polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=None if most is None else most - count)
                for tp, records in polled.items():
                    for one in records:
                        headers = tuple((name, value) for name, value in one.headers)
                        writer.write(TraceRecord(tp.partition, float(one.timestamp), one.key, one.value, headers))
                        count += 1
    return count
