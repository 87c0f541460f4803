"""The broker dies and comes back in the middle of load: the worker goes on, and nothing is lost."""

from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.broker import Broker
from tests.kafka.client import Client
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka


def test_a_broker_restart_in_the_middle_of_load_loses_nothing(
    own_broker: Broker, own_kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    pipeline = Pipeline(own_kafka, unique, package.path, partitions=4, options={"max_batch": 8})
    where = pipeline.produce([encode(event) for event in tips(10_000)])
    worker = start_worker(configuration([pipeline]))
    wait_until(lambda: pipeline.scored() >= 500, "it scores", every_s=0.01)
    before = pipeline.scored()
    own_broker.restart()
    assert before < len(where), "the broker went in the middle"
    where += pipeline.produce([encode(event) for event in tips(500, 1)])
    pipeline.wait_finished()
    assert worker.exit_code is None, f"the worker survives:\n{worker.stderr}"
    counted = positions(pipeline.scores())
    assert set(counted) == set(where)
