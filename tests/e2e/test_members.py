"""Members join, leave and are killed in the middle of load: nothing is lost, and only a crash repeats a score."""

import re
from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client
from tests.kafka.process import wait_until
from tests.kafka.worker import Configuration

pytestmark = pytest.mark.kafka

SLOW = {"max_batch": 8}
"""A few events a batch, so that thousands of events last for seconds and a signal arrives in the middle."""
SMALL = {
    "kafka": {"max_partition_fetch_bytes": 32 << 10},
    "worker": {"inbox_rows": 100, "max_event_bytes": 16 << 10},
}
"""Little is taken in ahead of the slow path, so that giving it up takes little time."""
SELDOM = {
    "kafka": {"rebalance_timeout_ms": 300_000, "request_timeout_ms": 400_000},
    "worker": {"commit_interval_ms": 190_000, "drain_timeout_ms": 200_000},
}
"""Commits only when partitions are given up, so that what a killed member had not committed is known exactly."""


@pytest.fixture
def pipeline(kafka: Client, unique: str, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka, unique, fingerprint_package(tmp_path, builtin("tipping")).path, partitions=6, options=SLOW)


def _scored_by(pipeline: Pipeline, minimum: int) -> None:
    wait_until(lambda: pipeline.scored() >= minimum, f"{minimum} scores", every_s=0.01)


def test_sigterm_in_the_middle_drains_without_a_loss_or_a_repeat(pipeline: Pipeline, start_worker: StartWorker) -> None:
    where = pipeline.produce([encode(event) for event in tips(20_000)])
    first = start_worker(configuration([pipeline], **SMALL))
    _scored_by(pipeline, 500)
    assert first.sigterm() == 0
    assert "abandoned" not in first.stderr

    committed = pipeline.committed()
    scored = positions(pipeline.scores())
    assert 500 <= len(scored) < len(where), "the signal came in the middle"
    below = [position for position in where if position[1] < committed.get(position[0], 0)]
    assert scored == dict.fromkeys(below, 1), "scored once, and committed up to exactly there"

    pipeline.options = {}
    start_worker(configuration([pipeline]))
    pipeline.wait_finished()
    assert positions(pipeline.scores()) == dict.fromkeys(where, 1)


def test_a_drain_without_the_time_for_all_it_took_in_repeats_nothing(
    pipeline: Pipeline, start_worker: StartWorker
) -> None:
    where = pipeline.produce([encode(event) for event in tips(20_000)])
    first = start_worker(configuration([pipeline], worker={"drain_timeout_ms": 1_000}))
    _scored_by(pipeline, 500)
    assert first.sigterm() == 1
    assert re.search(r"not drained: \d+ records are left to the next owner", first.stderr)
    assert len(positions(pipeline.scores())) < len(where), "there was no time for all"
    pipeline.options = {}
    start_worker(configuration([pipeline]))
    pipeline.wait_finished()
    assert positions(pipeline.scores()) == dict.fromkeys(where, 1)


def test_members_that_join_and_leave_under_load_lose_and_repeat_nothing(
    pipeline: Pipeline, start_worker: StartWorker
) -> None:
    where = pipeline.produce([encode(event) for event in tips(4_000, 0)])
    first = start_worker(configuration([pipeline], **SMALL))
    second = start_worker(configuration([pipeline], **SMALL), ready=False)
    where += pipeline.produce([encode(event) for event in tips(4_000, 1)])
    wait_until(lambda: pipeline.kafka.members(pipeline.group) == 2, "two members")
    where += pipeline.produce([encode(event) for event in tips(4_000, 2)])
    wait_until(lambda: second.metric("scorelane_scores_total") > 0, "the second member scores")
    where += pipeline.produce([encode(event) for event in tips(4_000, 3)])
    assert second.sigterm() == 0
    pipeline.wait_finished()
    assert first.exit_code is None
    assert positions(pipeline.scores()) == dict.fromkeys(where, 1)


def test_a_killed_member_costs_repeats_of_what_it_had_not_committed_and_no_loss(
    pipeline: Pipeline, start_worker: StartWorker
) -> None:
    seldom = configuration([pipeline], **{section: SMALL[section] | SELDOM[section] for section in SMALL})
    start_worker(seldom)
    victim = start_worker(seldom)
    wait_until(lambda: pipeline.kafka.members(pipeline.group) == 2, "two members")
    where = pipeline.produce([encode(event) for event in tips(10_000)])
    wait_until(lambda: victim.metric("scorelane_scores_total") >= 300, "the victim scores", every_s=0.01)
    victim.sigkill()
    assert pipeline.committed() == {}
    published = positions(pipeline.scores())
    assert len(published) < len(where), "it was killed in the middle"

    wait_until(lambda: len(positions(pipeline.scores())) == len(where), "everything is scored", every_s=0.2)
    wait_until(lambda: pipeline.kafka.members(pipeline.group) == 1, "the survivor has all partitions")
    counted = positions(pipeline.scores())
    assert set(counted) == set(where)
    repeated = {position for position, times in counted.items() if times > 1}
    assert len({partition for partition, _ in repeated}) == 3, "only partitions of the victim"
    assert len(repeated) >= 300, "what the victim had published and not committed is scored again"
    assert repeated <= set(published), "and nothing else is"
    assert max(counted.values()) == 2


def test_a_named_member_that_is_killed_and_back_in_time_takes_up_its_partitions_and_stops_nobody(
    pipeline: Pipeline, start_worker: StartWorker
) -> None:
    def member(name: str) -> Configuration:
        return configuration([pipeline], kafka={"group_instance_id": name, "session_timeout_ms": 30_000})

    first = start_worker(member("a"))
    second = start_worker(member("b"), ready=False)
    wait_until(lambda: pipeline.kafka.members(pipeline.group) == 2, "two members")
    second.wait_ready()
    wait_until(lambda: first.get("/readyz")[0] == 200, "both have partitions")
    rebalances = first.metric("scorelane_rebalances_total")
    where = pipeline.produce([encode(event) for event in tips(2_000, 0)])
    _scored_by(pipeline, 100)
    second.sigkill()
    where += pipeline.produce([encode(event) for event in tips(2_000, 1)])
    start_worker(member("b"))
    pipeline.wait_finished()
    assert set(positions(pipeline.scores())) == set(where)
    assert first.metric("scorelane_rebalances_total") == rebalances, first.stderr
