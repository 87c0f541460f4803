"""Offsets that are gone, and partitions that are new: what is there is read, and what is gone is told."""

from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client, Record
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def pipeline(kafka: Client, unique: str, tmp_path: Path) -> Pipeline:
    """Of one partition."""
    return Pipeline(kafka, unique, fingerprint_package(tmp_path, builtin("tipping")).path, partitions=1)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_what_retention_took_is_told_and_all_that_is_left_is_scored(
    kafka: Client, pipeline: Pipeline, start_worker: StartWorker, reset: str
) -> None:
    config = configuration([pipeline], kafka={"auto_offset_reset": reset})
    worker = start_worker(config)
    worker.wait_ready()
    pipeline.produce([encode(event) for event in tips(10)])
    pipeline.wait_finished()
    assert worker.sigterm() == 0
    pipeline.produce([encode(event) for event in tips(30, 1)])
    kafka.delete_records(pipeline.name, {0: 25})
    worker = start_worker(config)
    pipeline.wait_finished()
    assert positions(pipeline.scores()) == {(0, offset): 1 for offset in (*range(10), *range(25, 40))}
    told = f"topic {pipeline.name}, partition 0: offsets 10 to 24 were deleted before they were read"
    assert worker.stderr.count(told) == 1
    assert worker.metric("scorelane_deleted_records_total", topic=pipeline.name) == 15


def test_with_latest_a_partition_that_is_new_is_read_from_its_beginning(
    kafka: Client, pipeline: Pipeline, start_worker: StartWorker
) -> None:
    old = pipeline.produce([encode(event) for event in tips(5)])
    worker = start_worker(
        configuration([pipeline], kafka={"auto_offset_reset": "latest", "metadata_max_age_ms": 3_000})
    )
    worker.wait_ready()
    wait_until(lambda: pipeline.committed() == {0: 5}, "it has begun at the end")
    kafka.grow_topic(pipeline.name, 3)
    new = pipeline.produce([Record(encode(event), partition=index % 3) for index, event in enumerate(tips(30, 1))])
    pipeline.wait_finished()
    assert set(positions(pipeline.scores())) == set(new)
    assert not set(old) & set(new) and {number for number, _ in new} == {0, 1, 2}
    assert worker.metric("scorelane_deleted_records_total", topic=pipeline.name) == 0


def test_an_offset_beyond_the_end_is_told(kafka: Client, pipeline: Pipeline, start_worker: StartWorker) -> None:
    where = pipeline.produce([encode(event) for event in tips(8)])
    kafka.commit(pipeline.group, pipeline.name, {0: 1000})
    worker = start_worker(configuration([pipeline]))
    pipeline.wait_finished()
    assert set(positions(pipeline.scores())) == set(where)
    assert (
        f"topic {pipeline.name}, partition 0: offset 1000 is beyond the end; reading begins again at 0" in worker.stderr
    )
