"""Under pressure on a real Kafka: classes, late events, alarms in and out, cold starts, segments, what is left of a
budget. One worker has a topic for each case."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engines.package import Package, write_package
from schemas.event import TippingEvent
from schemas.score import Score
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import direct_scores, event_fields, row
from tests.kafka.client import Client, Record
from tests.kafka.process import wait_until
from tests.kafka.worker import Worker
from tests.models import tiny_package

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
LAST_BITS = 2.4e-7
SHED_EVENTS = 400
CLASSES = [
    {"name": "L1", "weight": 4, "timeout_ms": 60_000},
    {"name": "L2", "timeout_ms": 1, "shed": "light"},
    {"name": "L3", "timeout_ms": 1, "shed": "skip"},
    {"name": "L4", "timeout_ms": 1, "shed": "dead_letter"},
]
"""Nobody but L1 may wait for more than a millisecond."""
ALARMS = {"min_rows": 20, "raise_ms": 50, "clear_ms": 200}
TOKEN = "not to be guessed"


@dataclass
class Run:
    worker: Worker
    kafka: Client
    pipelines: Mapping[str, Pipeline]
    where: list[tuple[int, int]]
    """Where the events to be shed are."""
    alarms: str
    package: Package
    night: Package


@pytest.fixture(scope="module")
def run(kafka: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("pressure")
    package = tiny_package(directory, "tipping", "lr")
    night = tiny_package(directory, "tipping", "lr", 5, name="night")
    broken = _without_a_model(directory, package)
    names = {event.viewer_id: row(package.spec, event_fields(event))["ids"][0, 2] for event in _segment_events()}
    segment = {
        "name": "night",
        "model": str(night.path),
        "engine": "ort",
        "tensor": "ids",
        "column": 2,
        "values": [int(index) for index in list(names.values())[:4]],
    }
    options: dict[str, dict[str, object]] = {
        "shed": {"max_batch": 1},
        "late-light": {"late": "light"},
        "late-skip": {"late": "skip"},
        "late-dead": {"late": "dead_letter"},
        "missed": {},
        "held": {},
        "cold": {"cold_start": "light", "model": str(broken.path)},
        "warm": {"cold_start": "light"},
        "segments": {"segments": [segment]},
        "budget": {"event_deadline": "relative", "primary_above_ms": 300_000, "format": "json"},
    }
    group = f"pressure-{time.time_ns()}"
    pipelines = {
        name: Pipeline(kafka, f"{group}-{name}", package.path, 1, {"fallback": ["light"], **given}, group=group)
        for name, given in options.items()
    }
    alarms = kafka.create_topic(f"{group}-alarms")
    (directory / "token").write_text(f"{TOKEN}\n")
    where = pipelines["shed"].produce(
        Record(encode(event), headers=[("class", f"L{1 + index % 4}".encode())])
        for index, event in enumerate(tips(SHED_EVENTS))
    )
    config = configuration(
        list(pipelines.values()),
        classes=CLASSES,
        alarms={**ALARMS, "topic": alarms, "webhook_token_file": "token"},
    )
    worker = Worker(config, directory)
    try:
        yield Run(worker.wait_ready(), kafka, pipelines, where, alarms, package, night)
    finally:
        worker.sigkill()


def _without_a_model(directory: Path, package: Package) -> Package:
    """Its primary engine cannot be loaded, ever."""
    files = {name: package.file(name).read_bytes() for name in ("light.npz", "spec.toml")}
    return write_package(directory, name="broken", version="1", kind="lr", files={**files, "model.onnx": b"no model"})


def _segment_events() -> list[TippingEvent]:
    return tips(12, 3)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _deadline(event: TippingEvent, at_ms: int) -> Record:
    return Record(encode(event), headers=[("deadline_ms", str(at_ms).encode())])


def _scores(pipeline: Pipeline) -> list[Score]:
    """By offset: routes of one batch are published one after the other."""
    return sorted(pipeline.scores(), key=lambda score: score.offset)


def _engines(scores: list[Score]) -> list[tuple[str, str | None]]:
    return [(score.engine, score.reason) for score in scores]


def test_classes_by_header_and_what_becomes_of_those_that_waited_too_long(run: Run) -> None:
    pipeline = run.pipelines["shed"]
    pipeline.wait_finished()
    scores = {(score.partition, score.offset): score for score in pipeline.scores()}
    dead = {(0, int(dict(letter.headers)["scorelane.offset"] or b"")): letter for letter in pipeline.dead_letters()}
    assert positions(pipeline.scores()) + Counter(dict.fromkeys(dead, 1)) == dict.fromkeys(run.where, 1), "each once"
    by_class = [[scores[place] for place in run.where[first::4] if place in scores] for first in range(4)]

    assert set(_engines(by_class[0])) == {("ort", None)}, "the highest class has the time to wait"
    assert len(by_class[0]) == len(by_class[1]) == len(by_class[2]) == SHED_EVENTS // 4
    # A batch is one event here, so that a hundred of them cannot be scored in a millisecond.
    for scored, shed in ((by_class[1], ("light", "shed:timeout")), (by_class[2], ("none", "shed:timeout"))):
        assert set(_engines(scored)) - {("ort", None)} == {shed}
    assert all((score.score is None) == (score.engine == "none") for score in scores.values())
    assert dead and set(dead) <= set(run.where[3::4])
    assert {dict(letter.headers)["scorelane.reason"] for letter in dead.values()} == {b"shed"}
    assert run.worker.metric("scorelane_skipped_total", topic=pipeline.name, cause="shed:timeout") > 0


@pytest.mark.parametrize(
    ("case", "expected"), [("late-light", ("light", "late:light")), ("late-skip", ("none", "late:skip"))]
)
def test_late_events_go_to_the_last_engine_or_are_skipped(run: Run, case: str, expected: tuple[str, str]) -> None:
    pipeline = run.pipelines[case]
    in_time, late = tips(2)
    pipeline.produce([_deadline(in_time, _now() + HOUR_MS), _deadline(late, _now() - 1000)])
    pipeline.wait_finished()
    first, second = _scores(pipeline)
    assert _engines([first, second]) == [("ort", None), expected]
    assert (first.late, second.late) == (False, True)
    assert first.remaining_ms > 0 and second.remaining_ms <= -1000
    assert (second.score is None) == (expected[0] == "none")


def test_late_events_become_dead_letters(run: Run) -> None:
    pipeline = run.pipelines["late-dead"]
    in_time, late = tips(2)
    pipeline.produce([_deadline(in_time, _now() + HOUR_MS), _deadline(late, _now() - 1000)])
    pipeline.wait_finished()
    (score,), (letter,) = pipeline.scores(), pipeline.dead_letters()
    assert (score.offset, score.engine) == (0, "ort")
    headers = dict(letter.headers)
    assert (letter.value, headers["scorelane.offset"], headers["scorelane.reason"]) == (encode(late), b"1", b"late")
    assert run.worker.metric("scorelane_dead_letters_total", topic=pipeline.name, reason="late") == 1


def test_misses_raise_an_alarm_that_clears_when_they_are_over(run: Run) -> None:
    pipeline = run.pipelines["missed"]
    pipeline.produce([_deadline(event, _now() - 1000) for event in tips(200)])

    def told() -> list[dict[str, object]]:
        messages = run.kafka.read_all(run.alarms)
        assert all(message.key == json.loads(message.value or b"")["topic"].encode() for message in messages)
        alarms = [json.loads(message.value or b"") for message in messages]
        return [alarm for alarm in alarms if (alarm["topic"], alarm["cause"]) == (pipeline.name, "misses")]

    wait_until(lambda: len(told()) == 2, "raised and cleared", every_s=0.1)
    raised, cleared = told()
    assert (raised["state"], raised["observed"], raised["limit"]) == ("raised", 1.0, 0.01)
    assert cleared["state"] == "cleared" and cleared["observed"] <= 0.01
    assert raised["time_ms"] < cleared["time_ms"] and raised["generation"] < cleared["generation"]
    assert run.worker.metric("scorelane_alarm", topic=pipeline.name, cause="misses") == 0
    pipeline.wait_finished()
    assert {score.late for score in pipeline.scores()} == {True}


def test_an_alarm_from_outside_gives_way_to_the_light_engine_until_it_is_resolved(run: Run) -> None:
    pipeline, worker = run.pipelines["held"], run.worker

    def tell(status: str, token: str = TOKEN) -> int:
        alert = {
            "status": status,
            "labels": {"alertname": "GpuHot", "model": pipeline.name},
            "startsAt": "2026-08-01T10:00:00Z",
            "fingerprint": "f1",
        }
        body = json.dumps({"version": "4", "alerts": [alert]}).encode()
        return worker.post("/alarms", body, {"Authorization": f"Bearer {token}"})[0]

    def score(count: int) -> list[Score]:
        already = pipeline.scored()
        pipeline.produce([encode(event) for event in tips(count)])
        wait_until(lambda: pipeline.scored() == already + count, f"{count} more scores")
        return _scores(pipeline)[already:]

    assert set(_engines(score(5))) == {("ort", None)}
    assert tell("firing", "wrong") == 401
    assert set(_engines(score(5))) == {("ort", None)}
    assert tell("firing") == 200
    assert set(_engines(score(20))) == {("light", "ort:breaker:open")}
    assert worker.metric("scorelane_breaker", lane=f"{pipeline.name}-0", engine="ort") == 2
    assert tell("resolved") == 200
    # Probes are shadows of events that the light engine answers, so events must flow.
    wait_until(lambda: _engines(score(1)) == [("ort", None)], "the primary is back")
    assert worker.metric("scorelane_breaker", lane=f"{pipeline.name}-0", engine="ort") == 0
    assert set(_engines(score(20))) == {("ort", None)}


def test_a_primary_that_does_not_load_leaves_a_worker_that_answers(run: Run) -> None:
    pipeline = run.pipelines["cold"]
    pipeline.produce([encode(event) for event in tips(10)])
    pipeline.wait_finished()
    assert _engines(pipeline.scores()) == [("light", "ort:cold")] * 10
    assert f"topic {pipeline.name}: the primary engine stays cold, fallbacks answer: " in run.worker.stderr
    assert run.worker.get("/readyz")[0] == 200


def test_a_primary_that_starts_cold_takes_over_when_it_is_warm(run: Run) -> None:
    pipeline = run.pipelines["warm"]
    warm = f"topic {pipeline.name}: the primary engine ort is warm"
    wait_until(lambda: warm in run.worker.stderr, "the primary is warm")
    pipeline.produce([encode(event) for event in tips(10)])
    pipeline.wait_finished()
    assert _engines(pipeline.scores()) == [("ort", None)] * 10


def test_a_segment_has_the_scores_of_its_own_model(run: Run) -> None:
    pipeline, events = run.pipelines["segments"], _segment_events()
    pipeline.produce([encode(event) for event in events])
    pipeline.wait_finished()
    scores = _scores(pipeline)
    assert _engines(scores) == [("night:ort", "segment:night")] * 4 + [("ort", None)] * 8
    assert [score.model for score in scores] == ["night"] * 4 + ["tiny"] * 8
    fields = [event_fields(event) for event in events]
    expected = np.concatenate([direct_scores(run.night, fields[:4]), direct_scores(run.package, fields[4:])])
    assert np.abs(direct_scores(run.package, fields[:4]) - expected[:4]).max() > 0.01, "the models differ"
    np.testing.assert_allclose([score.score for score in scores], expected, rtol=0, atol=LAST_BITS)


def test_the_budget_goes_in_by_header_and_what_is_left_comes_out_with_the_score(run: Run) -> None:
    """Above 300 s the primary engine, below the light one: by `primary_above_ms`."""
    pipeline = run.pipelines["budget"]
    start = _now()
    budgets = [None, 400_000, 200_000, 900_000]
    pipeline.produce(
        Record(
            encode(event, "json"),
            timestamp=start,
            headers=[] if budget is None else [("deadline_ms", str(budget).encode())],
        )
        for event, budget in zip(tips(4), budgets, strict=True)
    )
    pipeline.wait_finished()
    scores = _scores(pipeline)
    assert _engines(scores) == [("ort", None), ("ort", None), ("light", "ort:budget"), ("ort", None)]
    for score, budget in zip(scores, (600_000, 400_000, 200_000, 600_000), strict=True):
        passed = score.scored_time_ms - start
        assert 0 < score.remaining_ms <= budget
        # Both clocks are the worker's own; they differ by rounding, and by what the machine's clock is corrected.
        assert score.remaining_ms == pytest.approx(budget - passed, abs=50)
