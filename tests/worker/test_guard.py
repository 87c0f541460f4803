"""Guard: the stand-in is always in reserve, probes cost no event, and a slow primary is seen again."""

from math import inf

import pytest

from worker.breaker import Breaker, BreakerPolicy, State, normal_time
from worker.guard import Decision, Guard, GuardPolicy
from worker.service_time import ServiceTime


def guard(primary_s: float = 0.010) -> Guard:
    """Predicted: primary 10 ms a batch, stand-in 1 ms (and as much for a batch before it), publishing 2 ms."""
    return Guard(
        Breaker(normal_time([(1, primary_s)]), BreakerPolicy(never_slow_s=0.0)),
        ServiceTime(prior=(primary_s / 1.5, 0.0)),
        ServiceTime(prior=(0.001 / 1.5, 0.0)),
        GuardPolicy(after_s=0.002, refresh_s=0.25, shadow_s=0.5),
    )


def opened() -> Guard:
    lane = guard()
    for _ in range(3):
        ticket = lane.decide(100, 1.0, 0.0).ticket
        assert ticket is not None
        lane.failed(ticket, 0.0)
    return lane


def test_in_time_the_primary_answers_and_is_left_while_the_stand_in_still_can() -> None:
    decision = guard().decide(100, 0.050, 0.0)
    assert decision == Decision(True, 0, pytest.approx(0.050 - 0.002 - 2 * 0.001), None)


def test_what_the_stand_in_is_busy_with_counts() -> None:
    assert guard().decide(100, 0.050, 0.0, wait_s=0.020).leave_at == pytest.approx(0.026)


def test_the_primary_needs_time_for_itself_and_for_the_stand_in_after_it() -> None:
    lane = guard()
    assert lane.needed(100) == pytest.approx(0.014)
    assert lane.needed(100, wait_s=0.004) == pytest.approx(0.018)
    lane.decide(100, 0.050, 0.0)
    assert lane.decide(100, 0.0141, 0.0).answers
    assert lane.decide(100, 0.0139, 0.0) == Decision(False, None, inf, "budget")


def test_a_taken_slot_leaves_the_batch_to_the_stand_in() -> None:
    assert guard().decide(100, 0.050, 0.0, slot_free=False) == Decision(False, None, inf, "busy")


def test_an_open_breaker_names_its_cause_and_lets_nothing_through() -> None:
    lane = opened()
    assert lane.decide(100, 0.1, 0.05) == Decision(False, None, inf, "breaker:errors")
    assert not lane.usable(0.1)
    assert [move.after for move in lane.moves()] == [State.OPEN]
    assert lane.moves() == []


def test_probes_are_shadows_and_close_the_breaker() -> None:
    lane = opened()
    assert lane.usable(0.25)
    for _ in range(3):
        decision = lane.decide(100, 1.0, 0.25)
        assert decision == Decision(False, 2, 0.75, "breaker:half_open")
        lane.succeeded(2, 100, 0.010, 0.26)
    assert lane.decide(100, 1.0, 0.27).answers
    assert [move.after for move in lane.moves()] == [State.OPEN, State.HALF_OPEN, State.CLOSED]


def test_a_primary_too_slow_for_every_batch_is_seen_again_and_found_quick() -> None:
    lane = guard()
    for _ in range(3):  # 80 ms each, learned, and not yet enough for the breaker
        ticket = lane.decide(100, 1.0, 0.0).ticket
        assert ticket is not None
        lane.succeeded(ticket, 100, 0.080, 0.1)
    assert lane.decide(100, 0.150, 0.1) == Decision(False, None, inf, "budget")
    seen, now = 0, 0.1
    while not (decision := lane.decide(100, now + 0.050, now)).answers:
        if decision.ticket is not None:
            seen += 1
            assert decision.leave_at == now + 0.5
            lane.succeeded(decision.ticket, 100, 0.010, now)
        now += 0.01
    assert seen == 3  # as many as a change of speed needs
    assert now < 3 * 0.26


def test_a_batch_left_behind_is_learned_as_the_time_waited() -> None:
    lane = guard()
    lane.decide(100, 0.050, 0.0)
    lane.failed(0, 0.046, left=(100, 0.046))  # the first one of an engine that was never seen sets the scale
    assert lane.needed(100) == pytest.approx(1.5 * 0.046 + 0.004)
    assert lane.moves() == []


def test_a_lost_device_opens_at_once() -> None:
    lane = guard()
    lane.device_lost(1.0)
    assert lane.decide(100, 9.0, 2.0).reason == "breaker:device_lost"
