"""The breakers of one engine: lanes apart, lost devices and alarms from outside together."""

import pytest

from worker.breaker import BreakerPolicy, Cause, State, Transition
from worker.breakers import Breakers, LaneBreaker

POLICY = BreakerPolicy(open_s=1.0, probes=1, consecutive=2)


class Told:
    def __init__(self) -> None:
        self.moves: list[tuple[str, State, Cause]] = []

    def __call__(self, lane: str, move: Transition) -> None:
        self.moves.append((lane, move.after, move.cause))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def breakers(told: Told) -> Breakers:
    return Breakers(POLICY, told)


def admitted(lane: LaneBreaker, now: float) -> int:
    generation = lane.admit(now)
    assert generation is not None
    return generation


def test_errors_open_the_breaker_of_their_own_lane_only(breakers: Breakers, told: Told) -> None:
    one, two = breakers.open_lane("a"), breakers.open_lane("b")
    for _ in range(2):
        one.failed(admitted(one, 0.0), 0.0)
    assert (one.refused(0.0), two.refused(0.0)) == ("open", None)
    assert one.admit(0.0) is None
    assert told.moves == [("a", State.OPEN, Cause.ERRORS)]
    assert dict(breakers.states()) == {"a": State.OPEN, "b": State.CLOSED}


def test_half_open_admits_shadows_and_no_answers_until_a_probe_passes(breakers: Breakers, told: Told) -> None:
    lane = breakers.open_lane("a")
    assert lane.admit_probe(0.0) is None, "closed: no probe is wanted"
    for _ in range(2):
        lane.failed(admitted(lane, 0.0), 0.0)
    assert lane.admit_probe(0.5) is None, "open: not yet"
    assert lane.refused(1.0) == "half_open", "the move that is due is made"
    assert lane.admit(1.0) is None
    probe = lane.admit_probe(1.0)
    assert probe is not None
    lane.succeeded(probe, 1, 0.001, 1.0)
    assert lane.refused(1.0) is None
    assert [cause for _, _, cause in told.moves] == [Cause.ERRORS, Cause.OPEN_TIME_OVER, Cause.PROBES_PASSED]


def test_a_lost_device_concerns_all_lanes_and_is_not_probed(breakers: Breakers, told: Told) -> None:
    one, two = breakers.open_lane("a"), breakers.open_lane("b")
    two.lose(3.0)
    assert breakers.lost
    assert [lane.refused(1e9) for lane in (one, two)] == [Cause.DEVICE_LOST] * 2
    assert told.moves == [("a", State.OPEN, Cause.DEVICE_LOST), ("b", State.OPEN, Cause.DEVICE_LOST)]


def test_an_alarm_from_outside_holds_all_lanes_until_it_is_released(breakers: Breakers) -> None:
    one, two = breakers.open_lane("a"), breakers.open_lane("b")
    breakers.hold("fire", 0.0)
    breakers.hold("flood", 0.0)
    assert [lane.refused(100.0) for lane in (one, two)] == ["open", "open"]
    breakers.release("fire", 100.0)
    assert one.refused(200.0) == "open", "the other one still holds"
    breakers.release("flood", 200.0)
    assert [lane.refused(200.0) for lane in (one, two)] == ["half_open", "half_open"]


def test_a_lane_that_opens_while_an_alarm_is_raised_is_held_too(breakers: Breakers, told: Told) -> None:
    breakers.hold("fire", 5.0)
    late = breakers.open_lane("a")
    assert late.refused(1000.0) == "open"
    assert told.moves == [("a", State.OPEN, Cause.HELD)]
    breakers.release("fire", 1000.0)
    assert late.refused(1000.0) == "half_open"
    assert breakers.open_lane("b").refused(1000.0) is None, "it is over"


def test_every_observer_is_told(breakers: Breakers, told: Told) -> None:
    second = Told()
    breakers.observe(second)
    breakers.open_lane("a")
    breakers.hold("fire", 0.0)
    assert told.moves == second.moves == [("a", State.OPEN, Cause.HELD)]
