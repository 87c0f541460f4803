"""Breaker: every move by the table, stale reports ignored, back without flapping."""

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.breaker import MOVES, Breaker, BreakerPolicy, Cause, State, Transition, normal_time

POLICY = BreakerPolicy(never_slow_s=0.0)


def breaker(policy: BreakerPolicy = POLICY) -> Breaker:
    """A breaker for an engine that takes 10 ms a batch (its p99: 15 ms)."""
    return Breaker(normal_time([(100, 0.010)]), policy)


def batch(guard: Breaker, now: float, seconds: float = 0.010, *, fails: bool = False) -> Transition | None:
    generation = guard.admit(now)
    assert generation is not None
    return guard.failed(generation, now) if fails else guard.succeeded(generation, 100, seconds, now)


def opened(policy: BreakerPolicy = POLICY) -> Breaker:
    """Opened by three failures at 0 s."""
    guard = breaker(policy)
    moves = [batch(guard, 0.0, fails=True) for _ in range(3)]
    assert [move is None for move in moves] == [True, True, False]
    return guard


def open_until(guard: Breaker, until: float) -> bool:
    """Whether the first probe comes then and not before; it may come from now on."""
    early, due = guard.poll(until - 1e-6), guard.poll(until)
    return early is None and due is not None and due.cause is Cause.OPEN_TIME_OVER


def recovered(guard: Breaker, now: float) -> Transition | None:
    """The probe time has come, and all probes are good."""
    assert guard.poll(now) is not None
    return [batch(guard, now) for _ in range(3)][-1]


def test_three_failures_in_a_row_open() -> None:
    guard = breaker()
    assert [batch(guard, t, fails=True) for t in (1.0, 1.1)] == [None, None]
    move = batch(guard, 1.2, fails=True)
    assert move == Transition(State.CLOSED, State.OPEN, Cause.ERRORS, 1, 1.2)
    assert guard.admit(1.3) is None
    assert open_until(guard, 1.45)


def test_a_success_between_failures_starts_the_row_again() -> None:
    guard = breaker()
    for t in range(4):
        assert batch(guard, t, fails=True) is None
        assert batch(guard, t, fails=True) is None
        assert batch(guard, t) is None
    assert guard.state is State.CLOSED


def test_half_of_a_window_failing_opens_only_from_the_minimum_count_on() -> None:
    guard = breaker()
    moves = [batch(guard, 1.0 + i / 100, fails=i % 2 == 1) for i in range(10)]
    assert moves[:9] == [None] * 9
    assert moves[9] is not None and moves[9].cause is Cause.ERRORS


def test_failures_spread_over_longer_than_the_window_do_not_open() -> None:
    guard = breaker()
    assert [batch(guard, i * 0.3, fails=i % 2 == 1) for i in range(100)] == [None] * 100


def test_five_times_slower_opens_for_latency_at_the_minimum_count() -> None:
    guard = breaker()
    moves = [batch(guard, 1.0 + i / 20, 0.050) for i in range(10)]
    assert moves[:9] == [None] * 9
    assert moves[9] is not None and moves[9].cause is Cause.LATENCY


def test_mean_above_half_as_much_again_opens_though_no_batch_is_above_the_tail() -> None:
    guard = breaker()
    moves = [batch(guard, 1.0 + i / 100, 0.0155) for i in range(10)]  # the tail's limit: 1.5 * 15 ms
    assert moves[9] is not None and moves[9].cause is Cause.LATENCY


def test_mean_below_half_as_much_again_stays_closed() -> None:
    guard = breaker()
    assert [batch(guard, 1.0 + i / 100, 0.0145) for i in range(100)] == [None] * 100


def test_more_than_one_slow_batch_in_a_hundred_opens() -> None:
    guard = breaker()
    slow = {50, 100, 150}
    moves = [batch(guard, i / 1000, 0.050 if i in slow else 0.010) for i in range(151)]
    assert moves[:150] == [None] * 150  # two in 101 are not yet `min_slow`
    assert moves[150] is not None and moves[150].cause is Cause.LATENCY


def test_one_hang_that_came_back_does_not_open() -> None:
    guard = breaker()
    moves = [batch(guard, i / 100, 0.500 if i == 5 else 0.010) for i in range(100)]
    assert moves == [None] * 100


def test_slowness_below_the_tolerable_time_is_none() -> None:
    guard = breaker(BreakerPolicy(never_slow_s=0.050))
    assert [batch(guard, i / 100, 0.050) for i in range(100)] == [None] * 100


def test_an_engine_without_measurements_learns_what_is_normal_from_its_first_batch() -> None:
    guard = Breaker(normal_time(), POLICY)
    assert [batch(guard, i / 100, 0.200) for i in range(50)] == [None] * 50
    assert any(batch(guard, 1 + i / 100, 0.900) for i in range(10))


def test_a_third_slower_for_long_is_not_forgotten_as_the_normal_speed() -> None:
    guard = breaker()
    for i in range(200):
        assert batch(guard, i / 100, 0.013) is None
    # The mean is judged by 10 ms still (11 ms at most), so that half as much again is noticed.
    moves = [batch(guard, 10 + i / 100, 0.0175) for i in range(10)]
    assert moves[-1] is not None and moves[-1].cause is Cause.LATENCY


def test_a_slow_engine_does_not_become_the_normal_one() -> None:
    guard, now, moves = breaker(), 0.0, []
    while len(moves) < 6:
        now += 0.05
        moves.append(guard.poll(now))
        if guard.admit(now) is not None:
            moves.append(guard.succeeded(guard.generation, 100, 0.050, now))
        moves = [move for move in moves if move is not None]
    assert [move.after for move in moves[:6]] == [State.OPEN, State.HALF_OPEN] * 3


def test_probes_close_after_the_open_time() -> None:
    guard = opened()
    assert guard.poll(0.249) is None
    move = guard.poll(0.250)
    assert move == Transition(State.OPEN, State.HALF_OPEN, Cause.OPEN_TIME_OVER, 2, 0.25)
    generations = [guard.admit(0.25) for _ in range(4)]
    assert generations == [2, 2, 2, None]
    assert [guard.succeeded(2, 100, 0.010, 0.26) for _ in range(2)] == [None, None]
    assert guard.admit(0.26) is None  # what has passed and what is under way make the full number
    move = guard.succeeded(2, 100, 0.010, 0.27)
    assert move == Transition(State.HALF_OPEN, State.CLOSED, Cause.PROBES_PASSED, 3, 0.27)


@pytest.mark.parametrize(("seconds", "fails", "cause"), [(0.010, True, Cause.ERRORS), (0.050, False, Cause.LATENCY)])
def test_one_bad_probe_opens_for_twice_as_long(seconds: float, fails: bool, cause: Cause) -> None:
    guard = opened()
    guard.poll(0.25)
    move = batch(guard, 0.3, seconds, fails=fails)
    assert move == Transition(State.HALF_OPEN, State.OPEN, cause, 3, 0.3)
    assert open_until(guard, 0.8)


def test_open_time_doubles_up_to_its_bound_and_starts_again_after_a_calm_time() -> None:
    guard, now = opened(), 0.25
    guard.poll(now)
    for open_s in (0.5, 1.0, 1.0, 1.0, 1.0):
        batch(guard, now, fails=True)
        assert open_until(guard, now + open_s)
        now += open_s
    assert [batch(guard, now) for _ in range(3)][-1] is not None
    assert guard.state is State.CLOSED
    for _ in range(3):
        batch(guard, now + 10.0, fails=True)
    assert open_until(guard, now + 10.25)


def test_opening_soon_after_closing_is_no_first_opening() -> None:
    guard = opened()
    recovered(guard, 0.25)
    for _ in range(3):
        batch(guard, 5.0, fails=True)
    assert open_until(guard, 5.5)


def test_reports_of_an_earlier_generation_change_nothing() -> None:
    guard = breaker()
    early = [guard.admit(0.0) for _ in range(6)]
    assert early == [0] * 6
    for _ in range(3):
        guard.failed(0, 0.1)
    assert guard.state is State.OPEN
    assert guard.succeeded(0, 100, 0.010, 0.2) is None
    guard.poll(0.4)
    assert guard.state is State.HALF_OPEN
    assert guard.failed(0, 0.41) is None
    assert guard.succeeded(0, 100, 0.010, 0.42) is None
    assert [guard.admit(0.43) for _ in range(4)] == [2, 2, 2, None]


def test_probes_that_never_report_are_given_up() -> None:
    guard = opened()
    guard.poll(0.25)
    assert guard.poll(100.0) is None  # no traffic, no probe: nothing is missing
    guard.admit(100.0)
    assert guard.poll(104.9) is None
    move = guard.poll(105.0)
    assert move is not None and move.cause is Cause.PROBES_MISSING and move.after is State.OPEN


def test_a_lost_device_stays_open_until_it_is_replaced() -> None:
    guard = breaker()
    move = guard.lost(1.0)
    assert move == Transition(State.CLOSED, State.OPEN, Cause.DEVICE_LOST, 1, 1.0)
    assert guard.poll(1e6) is None
    guard.release(Cause.DEVICE_LOST, 2e6)
    move = guard.poll(2e6)
    assert move is not None and move.after is State.HALF_OPEN


def test_an_alarm_from_outside_holds_it_open_until_all_are_released() -> None:
    guard = breaker()
    move = guard.hold("alertmanager:a", 1.0)
    assert move is not None and (move.after, move.cause) == (State.OPEN, Cause.HELD)
    assert guard.hold("alertmanager:b", 1.1) is None
    assert guard.hold("alertmanager:b", 1.2) is None
    guard.release("alertmanager:a", 2.0)
    guard.release("never raised", 2.0)
    assert guard.poll(50.0) is None
    guard.release("alertmanager:b", 60.0)
    assert guard.poll(60.0) is not None


def test_an_alarm_while_probing_opens_again() -> None:
    guard = opened()
    guard.poll(0.25)
    move = guard.hold("alertmanager:a", 0.3)
    assert move is not None and (move.before, move.after) == (State.HALF_OPEN, State.OPEN)


def test_an_alarm_released_at_once_still_keeps_the_first_open_time() -> None:
    guard = breaker()
    guard.hold("alertmanager:a", 1.0)
    guard.release("alertmanager:a", 1.0)
    assert guard.poll(1.24) is None
    assert guard.poll(1.25) is not None


@pytest.mark.parametrize(
    "options", [{"probes": 0}, {"open_s": 2.0}, {"error_part": 0.0}, {"slow_factor": 1.0}, {"calm_s": inf}]
)
def test_impossible_policies_name_their_key(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="max_open_s" if "open_s" in options else next(iter(options))):
        BreakerPolicy(**options)  # type: ignore[arg-type]


class Moves(RuleBasedStateMachine):
    """Any order of calls: moves come from the table, probes are bounded, and quiet always leads back to closed."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = breaker()
        self.now = 0.0
        self.state, self.generation = self.guard.state, 0
        self.out: list[int] = []

    def check(self, move: Transition | None) -> None:
        if move is not None:
            assert (move.before, move.generation) == (self.state, self.generation + 1)
            assert MOVES[(move.before, move.cause)] is move.after
            self.state, self.generation = move.after, move.generation
        assert (self.guard.state, self.guard.generation) == (self.state, self.generation)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.3, 6.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.check(self.guard.poll(self.now))

    @rule()
    def admit(self) -> None:
        generation = self.guard.admit(self.now)
        assert (generation is None) >= (self.state is State.OPEN)
        if generation is not None:
            assert generation == self.generation
            self.out.append(generation)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), outcome=st.sampled_from(["good", "slow", "failed"]))
    def report(self, data: st.DataObject, outcome: str) -> None:
        generation = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if outcome == "failed":
            self.check(self.guard.failed(generation, self.now))
        else:
            self.check(self.guard.succeeded(generation, 100, 0.010 if outcome == "good" else 0.1, self.now))

    @rule(name=st.sampled_from("ab"))
    def hold(self, name: str) -> None:
        self.check(self.guard.hold(name, self.now))

    @rule(name=st.sampled_from("ab"))
    def release(self, name: str) -> None:
        self.guard.release(name, self.now)

    @rule()
    def lose_and_replace(self) -> None:
        self.check(self.guard.lost(self.now))
        self.guard.release(Cause.DEVICE_LOST, self.now)

    @invariant()
    def probes_are_bounded(self) -> None:
        if self.state is State.HALF_OPEN:
            assert sum(generation == self.generation for generation in self.out) <= POLICY.probes

    def teardown(self) -> None:
        for name in "ab":
            self.guard.release(name, self.now)
        self.now += POLICY.probe_timeout_s
        self.check(self.guard.poll(self.now))
        self.now += POLICY.max_open_s
        self.check(self.guard.poll(self.now))
        while self.state is not State.CLOSED:
            generation = self.guard.admit(self.now)
            if generation is None:  # all places are taken by batches that are still out
                generation = self.out.pop(self.out.index(self.generation))
            self.check(self.guard.succeeded(generation, 100, 0.010, self.now))


TestMoves = Moves.TestCase
TestMoves.settings = settings(max_examples=150, stateful_step_count=40)
