"""`scorelane replay` as users call it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from schemas.spec import builtin
from tests.worker.replay.scenes import package
from worker.cli import cli
from worker.replay import pipeline
from worker.replay.synthetic import Traffic, make
from worker.replay.trace import TraceHead, TraceWriter

SERVICE = ["--service", "ort:1:2", "--service", "ort:256:12", "--service", "light:1:0.2", "--service", "light:256:0.6"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "worker.toml"
    path.write_text(
        f"""
[kafka]
bootstrap_servers = "none:1"
[[topics]]
name = "tips"
model = "{package().path}"
[[classes]]
name = "L1"
[[classes]]
name = "L4"
shed = "skip"
"""
    )
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["replay", *map(str, arguments)], catch_exceptions=False)


def report(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_same_call_prints_the_same_bytes(config: Path) -> None:
    call = ["--config", config, "--rate", 300, "--seconds", 1, "--class", "L1=0.3", "--class", "L4=0.7", *SERVICE]
    call += ["--fault", "error:primary:200ms-500ms", "--burst", "0.2-0.5:3"]
    first, second = run(*call), run(*call)
    assert first.stdout_bytes == second.stdout_bytes
    assert "closed -> open: errors" in first.stdout
    assert "duplicates 0, not committed 0" in first.stdout


@pytest.mark.parametrize("fault", ["hang:primary:700ms-10s", "slow:primary:200:700ms-100s"])
def test_a_batch_that_is_still_in_the_device_does_not_hold_up_the_end(config: Path, fault: str) -> None:
    found = report("--config", config, "--rate", 200, "--seconds", 1, *SERVICE, "--fault", fault)
    assert found["seconds"] < 1.5
    assert [one["lost"] for one in found["classes"]] == [0, 0]
    assert sum(one["events"] for one in found["classes"]) == found["events"]


def test_a_trace_is_played_at_a_speed(config: Path, tmp_path: Path) -> None:
    trace = make(Traffic(rate=200, seconds=2.0, bad_part=0.05), "tips", builtin("tipping"), "msgpack")
    with TraceWriter(tmp_path / "t.jsonl", TraceHead(1, trace.topic, trace.partitions)) as writer:
        for record in trace.records:
            writer.write(record)
    slow = report(tmp_path / "t.jsonl", "--config", config, *SERVICE)
    fast = report(tmp_path / "t.jsonl", "--config", config, "--speed", 10, *SERVICE)
    assert slow["events"] == fast["events"] == len(trace.records)
    assert slow["seconds"] > 1.9 > 0.3 > fast["seconds"]
    (dead,) = fast["classes"][0]["dead_letters"].values()
    assert dead > 0
    assert fast["classes"][0]["primary"] == fast["events"] - dead
    assert fast["classes"][0]["missed"] == 0


def test_a_trace_of_another_topic_is_only_played_into_a_topic_that_is_named(config: Path, tmp_path: Path) -> None:
    trace = make(Traffic(rate=50, seconds=0.2), "gifts", builtin("tipping"), "msgpack")
    with TraceWriter(tmp_path / "t.jsonl", TraceHead(1, trace.topic, trace.partitions)) as writer:
        for record in trace.records:
            writer.write(record)
    call = [tmp_path / "t.jsonl", "--config", config, *SERVICE]
    refused = run(*call)
    assert refused.exit_code == 2
    said = "the trace is of topic gifts, which the configuration has not: give one of tips with --topic"
    assert said in " ".join(refused.output.split())
    assert report(*call, "--topic", "tips")["events"] == len(trace.records)
    assert "--topic gifts: give one of tips" in run(*call, "--topic", "gifts").output


def test_a_file_that_is_no_trace_is_not_proposed_as_the_place_for_one(config: Path) -> None:
    result = run(config, "--config", config)
    assert result.exit_code != 0
    said = " ".join(result.output.split())
    assert f"{config}: line 1: not a trace: " in said
    assert said.endswith("; make one with `scorelane record TOPIC --out FILE`")


def test_a_real_clock_takes_real_time_and_loses_nothing(config: Path) -> None:
    found = report("--config", config, "--rate", 100, "--seconds", 0.5, "--clock", "real")
    assert found["seconds"] > 0.3
    assert [one["lost"] for one in found["classes"]] == [0, 0]
    assert found["uncommitted"] == found["duplicates"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either TRACE"),
        (["--rate", 1, "--fault", "slow:x"], "not a fault"),
        (["--rate", 1, "--service", "trt:1:1"], "the topic's engines are ort, light"),
        (["--rate", 1, "--service", "ort:0:1"], "rows must be at least 1"),
        (["--rate", 1, "--burst", "2-1:5"], "the end must be after the beginning"),
        (["--rate", 1, "--burst", "9-12:5", "--seconds", 9], "--burst: from second 9 on, of --seconds 9; let it begin"),
        (["--rate", 1, "--class", "L1"], "give a class and its part"),
        (["--rate", 1, "--class", "L1=1.5"], "give a class and its part of all events, above 0 and at most 1"),
        (["--rate", 1, "--class", "L1=nan"], "give a class and its part of all events, above 0 and at most 1"),
        (["--rate", 1, "--class", "NOPE=0.5", "--class", "L1=0.5"], "NOPE: the configuration's classes are L1, L4"),
        (["--rate", 1, "--class", "L1=0.2"], "the parts make 0.2; give every class its part, together 1"),
        (["--rate", 1, "--class", "L1=0.2", "--class", "L4=0.2"], "the parts make 0.4"),
        (["--rate", 1, "--class", "L1=0.8", "--class", "L4=0.8"], "the parts make 1.6"),
        (["--rate", 1, "--class", "L1=0.5", "--class", "L1=0.5"], "L1, L1: give each class once"),
        (
            ["--rate", 1, "--fault", "hang:primry:2s-4s", *SERVICE],
            "hang:primry: the topic's engines are primary, ort, light",
        ),
        (
            ["--rate", 1, "--fault", "slow:foo:2:1s-2s", *SERVICE],
            "slow:foo: the topic's engines are primary, ort, light",
        ),
        (["--rate", 1, "--fault", "lost:trt:0", *SERVICE], "lost:trt: the topic's engines are primary, ort, light"),
        (["--rate", 1, "--fault", "hang:light:2s-4s", *SERVICE], "hang: light is computed on the worker's own thread"),
        (["--rate", 1, "--fault", "error:ort:0-1", "--clock", "real"], "error:ort: real engines take no faults"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(config: Path, arguments: list[object], said: str) -> None:
    result = run("--config", config, *arguments)
    assert result.exit_code != 0
    assert said in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.parametrize("fault", ["hang:primary:20s-40s", "lost:ort:20s", "pause:20s-21s", "jump:+30s:20s"])
def test_a_fault_after_the_end_is_told_behind_the_report(config: Path, fault: str) -> None:
    result = run("--config", config, "--rate", 100, "--seconds", 1, *SERVICE, "--fault", fault, "--json")
    assert result.exit_code == 2
    ended = json.loads(result.stdout)["seconds"]
    said = f"{fault.partition(':')[0]} at second 20: the replay ended at second {ended:g}, so that it changed nothing"
    assert said in " ".join(result.stderr.split())


def test_a_lost_event_weighs_more_than_a_fault_after_the_end(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = pipeline.play

    def losing(scene: pipeline.Scene, clock: Any) -> pipeline.Played:
        found = played(scene, clock)
        return replace(found, report=msgspec.structs.replace(found.report, duplicates=1))

    monkeypatch.setattr(pipeline, "play", losing)
    call = ["replay", "--config", str(config), "--rate", "100", "--seconds", "1", *SERVICE, "--fault", "lost:ort:20s"]
    assert CliRunner().invoke(cli, call, standalone_mode=False).return_value == 1


def test_a_fault_while_the_backlog_is_drained_counts(config: Path) -> None:
    """Events come for one second, those of its last tenth are scored after the pause."""
    call = ["--config", config, "--rate", 1000, "--seconds", 1, *SERVICE]
    found = report(*call, "--fault", "pause:0.9s-1.5s", "--fault", "lost:ort:1.2s")
    assert 1.5 < found["seconds"] < 2


def test_classes_need_a_configuration_that_has_them(config: Path) -> None:
    config.write_text(config.read_text().partition("[[classes]]")[0])
    result = run("--config", config, "--rate", 1, "--class", "L1=1")
    assert result.exit_code == 2
    assert "--class L1: the configuration has no [[classes]]" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--seconds", "10"), ("--burst", "2-4:5"), ("--class", "L1=1"), ("--partitions", "4")]
)
def test_options_of_made_up_traffic_are_refused_beside_a_trace(
    config: Path, tmp_path: Path, option: str, value: str
) -> None:
    (tmp_path / "t.jsonl").write_text(lines(NOW_MS))
    result = run(tmp_path / "t.jsonl", "--config", config, option, value, *SERVICE)
    assert result.exit_code == 2
    assert f"{option} is for made-up traffic: give --rate instead of TRACE" in result.stderr


def test_a_config_is_needed() -> None:
    assert "--config FILE" in run("--rate", 1).output


def lines(*timestamps: object, partitions: object = 2) -> str:
    head = {"scorelane_trace": 1, "topic": "tips", "partitions": partitions}
    records = ({"partition": 0, "timestamp_ms": at, "key": None, "value": None} for at in timestamps)
    return "".join(json.dumps(line) + "\n" for line in (head, *records))


NOW_MS = 1_796_050_942_961
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lines(*[NOW_MS] * 9, 0.0, *[NOW_MS] * 10), "line 11: timestamp_ms is more than a day from line 2, "),
        (lines(0.0, *[NOW_MS] * 19), "line 2: timestamp_ms is more than a day from line 3, "),
        (lines(NOW_MS, NOW_MS, NOW_MS + DAY_MS + 1), "line 4: timestamp_ms is more than a day from line 3, "),
        (lines(NOW_MS, NOW_MS * 1000), "line 3: not a trace: Expected `float` <= 253402300799999"),
        (lines(NOW_MS, 1e18), "line 3: not a trace: Expected `float` <= 253402300799999"),
        (lines(1e308), "line 2: not a trace: Expected `float` <= 253402300799999"),
        (lines(NOW_MS, -1), "line 3: not a trace: Expected `float` >= 0"),
        (lines(-1e18), "line 2: not a trace: Expected `float` >= 0"),
        (lines(NOW_MS, partitions=100_000_000), "line 1: not a trace: Expected `int` <= 10000"),
        (lines(partitions=0), "line 1: not a trace: Expected `int` >= 1"),
        (lines(partitions=-5), "line 1: not a trace: Expected `int` >= 1"),
    ],
)
def test_a_trace_that_could_not_be_played_to_its_end_is_refused(
    config: Path, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "odd.jsonl").write_text(text)
    result = run(tmp_path / "odd.jsonl", "--config", config, *SERVICE)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {tmp_path / 'odd.jsonl'}: {said}")
    assert result.stderr.count("\n") == 1


def test_a_quiet_day_may_be_in_a_trace_and_old_records_behind_new_ones(config: Path, tmp_path: Path) -> None:
    hours = (5, 0, 9, 3)
    (tmp_path / "t.jsonl").write_text(lines(*(NOW_MS + hour * 360_000 for hour in hours), NOW_MS))
    found = report(tmp_path / "t.jsonl", "--config", config, *SERVICE, "--speed", 1000)
    assert (found["events"], round(found["seconds"])) == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "1e9", "--seconds", 100], "more than 10,000,000 events"),
        (["--rate", 10, "--burst", "0-1:inf"], "more than 10,000,000 events"),
        (["--rate", "inf"], "'inf' is not a finite number"),
        (["--rate", "nan"], "'nan' is not a finite number"),
        (["--rate", 1, "--seconds", "nan"], "'nan' is not a finite number"),
        (["--rate", 1, "--seconds", "inf"], "is not in the range 0<x<=86400"),
        (["--rate", 1, "--partitions", 10_001], "is not in the range 1<=x<=10000"),
    ],
)
def test_made_up_traffic_without_end_is_refused(config: Path, arguments: list[object], said: str) -> None:
    result = run("--config", config, *arguments, *SERVICE)
    assert result.exit_code == 2
    assert said in result.stderr
