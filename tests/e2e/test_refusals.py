"""What the brokers refuse ends the worker with the remedy."""

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
    return Pipeline(kafka, unique, fingerprint_package(tmp_path, builtin("tipping")).path)


def test_scores_without_keys_for_a_compacted_topic(pipeline: Pipeline, start_worker: StartWorker) -> None:
    compacted = pipeline.kafka.create_topic(f"{pipeline.name}.compacted", 2, cleanup_policy="compact")
    pipeline.options = {"scores": compacted}
    worker = start_worker(configuration([pipeline]))
    pipeline.produce([encode(event) for event in tips(1)])
    wait_until(lambda: worker.exit_code is not None, "it ends")
    assert worker.exit_code == 1
    assert "InvalidRecord(); no offset was moved for them; an event without a key" in worker.stderr
    assert f"set cleanup.policy=delete for {compacted}, or give the events keys\n" in worker.stderr
    assert set(pipeline.committed().values()) <= {0}
