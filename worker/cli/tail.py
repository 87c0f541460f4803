"""scorelane tail"""

import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from schemas.alarm import Alarm
from worker.alarms import summary
from worker.cli.client import client_args, connection_options, partitions_of, quiet, started
from worker.cli.loop import run_until_signal
from worker.cli.scores import ReadDeadLetter, ScoreCounts, ScoreReader, alarm, dead, to_json
from worker.printable import printable

REFRESH_S = 0.25


@click.command()
@click.argument("topic")
@connection_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of the live table.")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest scores, not with the next ones.")
@click.option("--max", "most", type=click.IntRange(1), help="Stop after so many scores, dead letters or alarms.")
def tail(
    topic: str,
    config_path: Path | None,
    bootstrap: str | None,
    as_json: bool,
    from_beginning: bool,
    most: int | None,
) -> int:
    """Watch the scores of TOPIC (in msgpack or JSON): rate, engines, late ones and the last scores.

    Of dead letters it shows the record's place (topic/partition@offset), key, reason and detail, of alarms time, topic,
    state and what is exceeded. Reads all partitions outside any group, so that it disturbs nobody. Without a terminal,
    one line for each score. Ctrl-C ends it with the totals. Records that are none of these are only counted; the first
    one is said on stderr.
    """
    args = client_args(config_path, bootstrap)
    quiet()
    counts = ScoreCounts()
    run_until_signal(lambda stop: _follow(args, topic, counts, as_json, from_beginning, most, stop))
    click.echo(printable(str(counts)), err=as_json)
    return 0


async def _follow(
    args: dict[str, Any],
    topic: str,
    counts: ScoreCounts,
    as_json: bool,
    from_beginning: bool,
    most: int | None,
    stop: asyncio.Event,
) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    from worker.fetching import keep_records_bare

    count = await partitions_of(topic, args)
    consumer = AIOKafkaConsumer(
        **args,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest" if from_beginning else "latest",
        fetch_max_wait_ms=20,
    )
    reader = ScoreReader()
    live = sys.stdout.isatty() and not as_json
    begin = time.monotonic()
    with Live(console=Console(), auto_refresh=False) if live else _Plain(as_json) as view:
        async with started(consumer, args):
            keep_records_bare(consumer)
            consumer.assign([TopicPartition(topic, partition) for partition in range(count)])
            shown = begin
            while not stop.is_set():
                left = None if most is None else most - counts.shown
                polled = await consumer.getmany(timeout_ms=200, max_records=left)
                every = [(tp, record) for tp, records in polled.items() for record in records]
                scores = [
                    dead(record.key, record.headers) or reader.read(record.value) or alarm(record.value)
                    for _, record in every
                ]
                if None in scores and not counts.unreadable:
                    tp, record = every[scores.index(None)]
                    say_no_score(tp.topic, tp.partition, record.offset, view)
                for score in scores:
                    counts.add(score)
                if isinstance(view, _Plain):
                    view.show([score for score in scores if score is not None])
                elif (now := time.monotonic()) - shown >= REFRESH_S:
                    shown = now
                    view.update(live_view(topic, counts, now - begin), refresh=True)
                if most is not None and counts.shown >= most:
                    break
            if isinstance(view, Live):  # which stays on the screen
                view.update(live_view(topic, counts, time.monotonic() - begin), refresh=True)


def say_no_score(topic: str, partition: int, offset: int, view: "Live | _Plain") -> None:
    """Once, since who looks at a topic of events would else wait for nothing."""
    text = f"scorelane: {topic}/{partition}@{offset} is no score, and records like it are only"
    text += " counted; scores are in the topic that a topic's `scores` names, by default <topic>.scores"
    if isinstance(view, _Plain):
        click.echo(text, err=True)
    else:
        view.console.print(text, markup=False, highlight=False)


class _Plain:
    """Lines for a pipe or a file."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def __enter__(self) -> "_Plain":
        return self

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()

    def show(self, scores: list[Any]) -> None:
        for score in scores:
            if isinstance(score, ReadDeadLetter | Alarm):
                text = msgspec.json.encode(score).decode() if self._as_json else other_line(score)
            else:
                text = to_json(score).decode() if self._as_json else line(score)
            sys.stdout.write(text + "\n")
        if scores:
            sys.stdout.flush()


def decimals(score: Any) -> str:
    """The number of a score, "-" where the event was skipped."""
    return "-" if score.score is None else f"{score.score:.4f}"


def line(score: Any) -> str:
    """One score in one line."""
    engine = score.engine if score.reason is None else f"{score.engine} ({score.reason})"
    late = f"late by {-score.remaining_ms} ms" if score.late else f"{score.remaining_ms} ms left"
    return printable(f"{score.key}  {decimals(score)}  {score.model} {score.version}  {engine}  {late}")


def other_line(other: ReadDeadLetter | Alarm) -> str:
    """One dead letter or alarm in one line."""
    if isinstance(other, Alarm):
        at = datetime.fromtimestamp(other.time_ms / 1000, UTC)
        when = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return printable(f"{when}  {other.topic}  {other.state}  {summary(other)}")
    return printable(f"{other.place}  {'-' if other.key is None else other.key}  {other.reason}  {other.detail}")


def table(scores: list[Any]) -> Table:
    """The scores as rows, the newest last. Where the terminal is narrow the names are cut, not the numbers."""
    rows = Table(expand=True)
    for column in ("key", "model", "engine", "score", "budget left", "record"):
        name = column in {"key", "model", "engine"}
        rows.add_column(column, justify="left" if name else "right", ratio=1 if name else None, no_wrap=True)
    for score in scores:
        engine = score.engine if score.reason is None else f"{score.engine} ({score.reason})"
        rows.add_row(
            _cell(str(score.key)),
            _cell(f"{score.model} {score.version}"),
            _cell(engine, style="" if score.reason is None else "yellow"),
            decimals(score),
            _cell(f"{score.remaining_ms} ms", style="red" if score.late else ""),
            _cell(f"{score.partition}@{score.offset}"),
        )
    return rows


def _cell(text: str, style: str = "") -> Text:
    """A cell as it stands: a plain `str` would be read as markup."""
    return Text(printable(text), style=style)


def live_view(topic: str, counts: ScoreCounts, seconds: float) -> RenderableType:
    """Totals, the last scores, and the last dead letters and alarms."""
    head = f"{topic}: {counts}, {counts.scores / seconds:.0f}/s over {seconds:.0f} s (Ctrl-C ends)"
    others: list[ReadDeadLetter | Alarm] = [*counts.last_dead, *counts.last_alarms]
    lines = [Text(other_line(other), overflow="fold") for other in others]
    scores = [table(list(counts.last))] if counts.scores or not lines else []
    return Group(Text(printable(head), style="bold"), *scores, *lines)
