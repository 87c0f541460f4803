from dataclasses import replace

from worker.health import Facts, not_live, not_ready

HEALTHY = Facts(warm=True, draining=False, assigned_since=90.0, held=0, last_poll=99.9, last_settled=95.0)


def test_a_worker_that_moves_is_live_and_ready() -> None:
    assert not_live(HEALTHY, 100.0, 60.0) == []
    assert not_ready(HEALTHY, 100.0, 60.0, 30.0) == []
    assert not_ready(replace(HEALTHY, held=50), 100.0, 60.0, 30.0) == []


def test_an_idle_worker_stays_ready_however_long_nothing_came() -> None:
    assert not_ready(replace(HEALTHY, last_poll=9999.9), 10_000.0, 60.0, 30.0) == []


def test_warming_up_is_live_and_not_ready() -> None:
    facts = replace(HEALTHY, warm=False, assigned_since=None)
    assert not_live(facts, 1000.0, 60.0) == []
    assert not_ready(facts, 1000.0, 60.0, 30.0) == ["warming up"]


def test_a_rebalance_is_live_and_not_ready() -> None:
    facts = replace(HEALTHY, assigned_since=None)
    assert not_live(facts, 100.0, 60.0) == []
    assert not_ready(facts, 100.0, 60.0, 30.0) == ["no assignment: rebalancing"]


def test_a_first_join_says_what_it_may_wait_for() -> None:
    facts = replace(HEALTHY, assigned_since=None, joining="joining group ads for 4 s")
    assert not_ready(facts, 100.0, 60.0, 30.0) == ["no assignment: joining group ads for 4 s"]


def test_a_drain_is_live_and_not_ready() -> None:
    assert not_live(replace(HEALTHY, draining=True), 1e6, 60.0) == []
    assert not_ready(replace(HEALTHY, draining=True), 100.0, 60.0, 30.0) == ["draining"]


def test_held_records_without_progress_are_not_live() -> None:
    stuck = replace(HEALTHY, held=7)
    assert not_live(stuck, 155.0, 60.0) == []
    assert not_live(stuck, 155.1, 60.0) == ["7 records are held and none was settled for 60 s"]


def test_a_fresh_assignment_starts_the_stall_clock_anew() -> None:
    assert not_live(replace(HEALTHY, held=7, last_settled=0.0, assigned_since=100.0), 150.0, 60.0) == []


def test_a_poll_loop_that_stands_still_is_not_live() -> None:
    assert not_live(HEALTHY, 160.0, 60.0) == ["the last poll was 60 s ago"]


def test_brokers_that_leave_everything_unanswered_are_told_and_are_no_reason_to_restart() -> None:
    waiting = replace(HEALTHY, held=7, unacknowledged_s=5.0, uncommitted_s=5.0)
    assert not_ready(waiting, 100.0, 60.0, 30.0) == []
    silent = replace(waiting, unacknowledged_s=12.3)
    assert not_ready(silent, 100.0, 60.0, 30.0) == ["the brokers have acknowledged no score or dead letter for 12 s"]
    assert not_live(silent, 100.0, 60.0) == []
    assert not_ready(replace(waiting, uncommitted_s=5.1), 100.0, 60.0, 30.0) == ["no commit has succeeded for 5 s"]


def test_commits_that_never_succeed_are_a_reason_to_restart() -> None:
    """Of a group's client that is stuck nothing else shows: it fetches, and scores are acknowledged."""
    assert not_live(replace(HEALTHY, uncommitted_s=60.0), 100.0, 60.0) == []
    stuck = replace(HEALTHY, uncommitted_s=60.1)
    assert not_live(stuck, 100.0, 60.0) == ["no commit has succeeded for 60 s"]
    assert not_ready(stuck, 100.0, 60.0, 30.0) == ["no commit has succeeded for 60 s"]


def test_a_worker_that_ends_sooner_tells_sooner() -> None:
    facts = replace(HEALTHY, held=7, unacknowledged_s=1.6)
    assert not_ready(facts, 100.0, 60.0, 3.0) == ["the brokers have acknowledged no score or dead letter for 2 s"]
    assert not_ready(facts, 100.0, 60.0, 3.2) == []
