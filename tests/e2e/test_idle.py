"""A worker without events costs next to nothing."""

import time
from pathlib import Path

import pytest

from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, tips
from tests.kafka.client import Client
from tests.models import tiny_package

pytestmark = pytest.mark.kafka

INTERVAL_S = 5.0


def test_idle_costs_less_than_two_percent_of_a_core(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    pipeline = Pipeline(kafka, unique, tiny_package(tmp_path).path, partitions=8, options={"fallback": ["light"]})
    pipeline.produce([encode(event) for event in tips(1_000)])
    worker = start_worker(configuration([pipeline], kafka={"heartbeat_interval_ms": 1_500}))
    pipeline.wait_finished()
    # CPU time is a resource, not a speed: other load on the machine does not add to it.
    before, start = worker.cpu_s(), time.monotonic()
    time.sleep(INTERVAL_S)
    used, passed = worker.cpu_s() - before, time.monotonic() - start
    assert used / passed < 0.02, f"{100 * used / passed:.1f} % of a core"
