"""Late events are scored and flagged; a record's header can bring the deadline."""

import time
from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client, Record

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000


def test_lateness_is_counted_from_the_record_and_from_its_header(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    now = time.time_ns() // 1_000_000
    value = encode(tips(1)[0])

    def pipeline(name: str, **options: object) -> Pipeline:
        topic = f"{unique}-{name}"
        return Pipeline(kafka, topic, package.path, 1, {"budget_ms": HOUR_MS, **options}, group=unique)

    def header(deadline_ms: int) -> list[tuple[str, bytes | None]]:
        return [("deadline_ms", str(deadline_ms).encode())]

    absolute, relative = pipeline("absolute"), pipeline("relative", event_deadline="relative")
    ignored, arrival = pipeline("ignored", event_deadline="ignore"), pipeline("arrival", deadline="arrival")
    old = now - 2 * HOUR_MS
    absolute.produce(
        [
            Record(value, timestamp=now),
            Record(value, timestamp=old),
            Record(value, timestamp=now, headers=header(now - 1_000)),
            Record(value, timestamp=now, headers=header(now + HOUR_MS // 2)),
            Record(value, timestamp=now, headers=[("deadline_ms", b"soon")]),
        ]
    )
    relative.produce([Record(value, timestamp=now - 5_000, headers=header(left)) for left in (1_000, HOUR_MS // 2)])
    ignored.produce([Record(value, timestamp=now, headers=header(now - 1_000))])
    arrival.produce([Record(value, timestamp=old)])

    pipelines = [absolute, relative, ignored, arrival]
    worker = start_worker(configuration(pipelines))
    for each in pipelines:
        each.wait_finished()

    assert [score.late for score in absolute.scores()] == [False, True, True, False, False]
    assert [score.late for score in relative.scores()] == [True, False]
    assert [score.late for score in ignored.scores()] == [False]
    assert [score.late for score in arrival.scores()] == [False]
    for each in pipelines:
        assert all(score.late == (score.remaining_ms < 0) for score in each.scores())
    budget, overdue, by_header, half_an_hour, unreadable = (score.remaining_ms for score in absolute.scores())
    assert overdue <= -HOUR_MS and by_header <= -1_000
    assert half_an_hour <= HOUR_MS // 2 < budget <= HOUR_MS and HOUR_MS // 2 < unreadable
    assert worker.metric("scorelane_late_total", topic=absolute.name) == 2
