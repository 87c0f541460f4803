"""Signals that come before the worker is ready."""

from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka


def test_sigterm_ends_a_start_that_still_waits_for_its_topic(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    pipeline = Pipeline(kafka, unique, fingerprint_package(tmp_path, builtin("tipping")).path)
    pipeline.name = f"{unique}-missing"
    worker = start_worker(configuration([pipeline], worker={"publish_timeout_ms": 50_000}), ready=False)
    wait_until(lambda: "not found" in worker.stderr, "it looks for the topic")
    assert worker.sigterm() == 0, "1 is a start that failed, without the topic after 50 s"
    assert "stopped before it was ready" in worker.stderr
    assert "Unclosed" not in worker.stderr
