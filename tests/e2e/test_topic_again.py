"""A topic that is deleted and created again under a running worker, noticed by it or not."""

import os
import signal
from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def pipeline(kafka: Client, unique: str, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka, unique, fingerprint_package(tmp_path, builtin("tipping")).path, partitions=1)


def test_unnoticed_the_worker_ends_with_the_reason_and_its_next_start_scores_all_of_the_new_topic(
    pipeline: Pipeline, kafka: Client, start_worker: StartWorker
) -> None:
    worker = start_worker(configuration([pipeline]))
    pipeline.produce([encode(event) for event in tips(50)])
    pipeline.wait_finished()
    os.kill(worker.pid, signal.SIGSTOP)
    kafka.delete_topic(pipeline.name)
    kafka.create_topic(pipeline.name, 1)
    pipeline.produce([encode(event) for event in tips(20)])
    os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: worker.exit_code is not None, "the worker ends")
    assert worker.exit_code == 1, worker.stderr
    assert f"topic {pipeline.name}, partition 0: offset 0 came after offset 49" in worker.stderr
    assert "Traceback" not in worker.stderr
    assert pipeline.committed() == {0: 0}
    again = start_worker(configuration([pipeline]))
    pipeline.wait_finished()
    assert again.sigterm() == 0
    assert sorted(score.offset for score in pipeline.scores()[50:]) == list(range(20))


def test_noticed_the_worker_goes_on_with_the_new_topic(
    pipeline: Pipeline, kafka: Client, start_worker: StartWorker
) -> None:
    worker = start_worker(configuration([pipeline], kafka={"metadata_max_age_ms": 500}))
    pipeline.produce([encode(event) for event in tips(50)])
    pipeline.wait_finished()
    kafka.delete_topic(pipeline.name)
    wait_until(lambda: "assigned: no partitions" in worker.stderr, "it notices")
    kafka.create_topic(pipeline.name, 1)
    pipeline.produce([encode(event) for event in tips(20)])
    pipeline.wait_finished()
    assert worker.sigterm() == 0
    assert sorted(score.offset for score in pipeline.scores()[50:]) == list(range(20))
