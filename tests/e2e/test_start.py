"""A start that cannot be finished, or is not meant to be."""

from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def missing(kafka: Client, unique: str, tmp_path: Path) -> Pipeline:
    """Of a topic that is not there."""
    pipeline = Pipeline(kafka, unique, fingerprint_package(tmp_path, builtin("tipping")).path)
    pipeline.name = f"{unique}-missing"
    return pipeline


def test_topics_that_are_not_there_are_each_said_once_and_end_the_start(
    missing: Pipeline, start_worker: StartWorker
) -> None:
    worker = start_worker(configuration([missing]), ready=False)
    wait_until(lambda: worker.exit_code is not None, "it gives up")
    assert worker.exit_code == 1
    for topic in (missing.name, f"{missing.name}.scores", f"{missing.name}.dead"):
        waits = f"scorelane.topics: topic {topic}: unknown to the brokers; waiting up to 10 s for it\n"
        assert worker.stderr.count(waits) == 1
        assert (
            worker.stderr.count(f"topic {topic}: unknown to the brokers for 10 s; create it with `scorelane topics`\n")
            == 1
        )
    assert "aiokafka" not in worker.stderr


def test_sigterm_ends_a_start_that_still_waits_for_its_topic(missing: Pipeline, start_worker: StartWorker) -> None:
    worker = start_worker(configuration([missing]), ready=False)
    wait_until(lambda: "waiting up to" in worker.stderr, "it looks for the topic")
    assert worker.sigterm() == 0, "1 is a start that failed without the topic"
    assert "stopped before it was ready" in worker.stderr
    assert "Unclosed" not in worker.stderr


def test_a_start_after_a_crash_says_what_it_waits_for(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    pipeline = Pipeline(kafka, unique, fingerprint_package(tmp_path, builtin("tipping")).path)
    silent = configuration([pipeline], kafka={"session_timeout_ms": 12_000})
    start_worker(silent).sigkill()
    again = start_worker(silent, ready=False)
    hint = "s: after a crash the group waits up to kafka.session_timeout_ms (12 s); see kafka.group_instance_id"
    wait_until(lambda: hint in again.get("/readyz")[1], "it says so to those who ask")
    wait_until(lambda: again.get("/readyz")[0] == 200, "it is ready")
    assert f"joining group {pipeline.group} for " in again.stderr
    assert again.stderr.index(hint) < again.stderr.index("assigned: ")
