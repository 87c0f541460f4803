"""The broker dies and comes back in the middle of load: the worker goes on, and nothing is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, Position, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.broker import Broker
from tests.kafka.client import Client
from tests.kafka.process import wait_until
from worker.health import UNANSWERED_S

pytestmark = pytest.mark.kafka

Backlog = Callable[..., tuple[Pipeline, list[Position]]]


@pytest.fixture
def backlog(own_kafka: Client, unique: str, tmp_path: Path) -> Backlog:
    """So many events wait at the test's own broker; a few in a batch, so that they last."""

    def make(events: int, partitions: int = 4) -> tuple[Pipeline, list[Position]]:
        package = fingerprint_package(tmp_path, builtin("tipping"))
        pipeline = Pipeline(own_kafka, unique, package.path, partitions=partitions, options={"max_batch": 8})
        return pipeline, pipeline.produce([encode(event) for event in tips(events)])

    return make


def test_a_broker_restart_in_the_middle_of_load_loses_nothing(
    own_broker: Broker, backlog: Backlog, start_worker: StartWorker
) -> None:
    pipeline, where = backlog(10_000)
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


def test_brokers_that_do_not_answer_make_the_worker_not_ready_until_they_do(
    own_broker: Broker, backlog: Backlog, start_worker: StartWorker
) -> None:
    """A frozen broker: connections stay open, so that no error says what is wrong."""
    pipeline, where = backlog(20_000, partitions=1)
    worker = start_worker(configuration([pipeline]))
    wait_until(lambda: worker.metric("scorelane_scores_total") > 0, "it scores", every_s=0.01)
    own_broker.freeze()
    try:
        wait_until(lambda: worker.get("/readyz")[0] == 503, "it is not ready", timeout_s=20)
        status, why = worker.get("/readyz")
        assert status == 503 and "the brokers have acknowledged no score or dead letter for" in why
        assert worker.get("/healthz") == (200, "ok\n")
        wait_until(lambda: "not ready: the brokers have acknowledged no" in worker.stderr, "the log says so")
        assert worker.metric("scorelane_unacknowledged_seconds") > UNANSWERED_S
        assert worker.metric("scorelane_held_records") > 0
        commits = worker.metric("scorelane_commits_total", outcome="ok")
    finally:
        own_broker.thaw()
    wait_until(lambda: worker.get("/readyz")[0] == 200, "it is ready again")
    wait_until(lambda: worker.metric("scorelane_commits_total", outcome="ok") > commits, "it commits again")
    pipeline.wait_finished()
    assert worker.exit_code is None, worker.stderr
    assert set(positions(pipeline.scores())) == set(where)
    assert worker.stderr.count("not ready: the brokers") == 1


def test_brokers_that_stay_away_end_the_worker_and_the_next_start_loses_nothing(
    own_broker: Broker, backlog: Backlog, start_worker: StartWorker
) -> None:
    pipeline, where = backlog(20_000)
    config = configuration([pipeline], worker={"publish_timeout_ms": 4000})
    worker = start_worker(config)
    wait_until(lambda: worker.metric("scorelane_scores_total") > 0, "it scores", every_s=0.01)
    own_broker.kill()
    try:
        wait_until(lambda: worker.exit_code is not None, "it ends")
    finally:
        own_broker.start()
    assert worker.exit_code == 1, worker.stderr
    assert "not ready: the brokers have acknowledged no score or dead letter for" in worker.stderr
    assert f"topic {pipeline.scores_topic}, partition " in worker.stderr and "no offset was moved" in worker.stderr
    start_worker(config)
    pipeline.wait_finished()
    assert set(positions(pipeline.scores())) == set(where)


def test_a_stop_without_an_answer_of_the_brokers_is_no_success(
    own_broker: Broker, backlog: Backlog, start_worker: StartWorker
) -> None:
    pipeline, _ = backlog(20)
    worker = start_worker(configuration([pipeline], worker={"commit_interval_ms": 9_000}))
    wait_until(lambda: worker.metric("scorelane_scores_total") == 20, "all are scored", every_s=0.01)
    own_broker.freeze()
    assert worker.sigterm() == 1
    assert "not drained: the last commit failed" in worker.stderr
