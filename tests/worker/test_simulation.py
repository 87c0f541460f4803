"""Scenarios with exact outcomes: the real batcher, service times, breaker and guard in simulated time."""

import numpy as np
import pytest
from click.testing import CliRunner

from worker.breaker import Cause, State, Transition
from worker.cli.simulate import simulate as command
from worker.simulation import RULES, Ours, simulate
from worker.world import Fault, Outcome, Scenario, merged, miss_ratio

SECONDS = 2.5
EVEN = {"seconds": SECONDS, "rate": 20_000.0, "poisson": False, "noise": 0.0}
"""20 rows every millisecond: 28 % of what the primary can do (1 ms + 10 us a row, 256 rows a batch)."""


def ours(**options: object) -> tuple[list[Transition], Outcome]:
    rule, outcome = simulate(Scenario(**{**EVEN, **options}), RULES["scorelane"])  # type: ignore[arg-type]
    assert isinstance(rule, Ours)
    return rule.moves, outcome


def states(moves: list[Transition]) -> list[tuple[State, Cause]]:
    return [(move.after, move.cause) for move in moves]


FAILED = [(State.OPEN, Cause.ERRORS), (State.HALF_OPEN, Cause.OPEN_TIME_OVER)]
CLOSED = (State.CLOSED, Cause.PROBES_PASSED)


def test_idle_device_takes_each_chunk_at_once() -> None:
    moves, outcome = ours(rate=1000.0)  # one row a millisecond, 1.01 ms each: every second one waits for the device
    assert moves == []
    assert len(outcome.answered) == 2500
    assert (outcome.missed.sum(), outcome.light.sum(), outcome.lost) == (0, 0, 0)
    assert float(outcome.answered[0]) == pytest.approx(1.01e-3 + 2e-3)
    assert outcome.latency(1.0) < 2 * 1.02e-3 + 2e-3


def test_normal_load_is_the_primary_s_alone() -> None:
    moves, outcome = ours()
    assert moves == []
    assert len(outcome.answered) == 50_000
    assert (outcome.missed.sum(), outcome.light.sum(), outcome.lost) == (0, 0, 0)


def test_a_burst_of_ten_is_shared_with_the_stand_in_and_nothing_is_late() -> None:
    moves, outcome = ours(bursts=((1.0, 1.5, 10.0),))
    assert moves == []  # more load than it can take is not the engine's fault
    assert len(outcome.answered) == 140_000
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    served = np.count_nonzero(~outcome.light & (outcome.arrived >= 1.0) & (outcome.arrived < 1.5))
    assert 0.75 < served / (0.5 * 256 / 3.56e-3) < 1.05  # meanwhile the primary is kept at work
    assert not outcome.light[outcome.arrived >= 1.6].any()


def test_five_times_slower_opens_for_latency_though_nothing_was_late() -> None:
    moves, outcome = ours(faults=(Fault("slow", 1.0, 1.5, 5.0),))
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    slow = [(State.OPEN, Cause.LATENCY), (State.HALF_OPEN, Cause.OPEN_TIME_OVER)]
    assert states(moves) == [*slow, *slow, CLOSED]
    assert moves[0].at < 1.2 and moves[-1].at < 2.0
    assert not outcome.light[outcome.arrived >= 2.0].any()


def test_twenty_times_slower_no_event_is_late_and_the_primary_is_back_within_two_seconds() -> None:
    moves, outcome = ours(seconds=4.0, faults=(Fault("slow", 1.0, 2.0, 20.0),))
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    assert states(moves)[:2] == FAILED
    assert states(moves)[-1] == CLOSED
    first_light = outcome.arrived[outcome.light].min()
    assert 0.95 <= first_light < 1.2  # rows that waited when it began are the first ones
    assert moves[0].at < 1.2
    assert 2.0 < moves[-1].at < 4.0
    assert not outcome.light[outcome.arrived > moves[-1].at + 0.01].any()


def test_burst_of_ten_with_a_primary_twenty_times_slower() -> None:
    fault = (Fault("slow", 1.0, 1.5, 20.0),)
    mix = (0.4, 0.3, 0.2, 0.1)
    moves, outcome = ours(bursts=((1.0, 1.5, 10.0),), faults=fault, mix=mix)
    assert miss_ratio(outcome, outcome.ranks == 0) <= 0.001
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    assert moves[0].at < 1.2
    assert states(moves)[-1] == CLOSED and moves[-1].at < 3.5


def test_one_hang_costs_one_batch_to_the_stand_in_and_opens_nothing() -> None:
    moves, outcome = ours(faults=(Fault("hang", 1.0, 1.0015),))
    assert moves == []
    assert (outcome.missed.sum(), outcome.light.sum(), outcome.lost) == (0, 0, 0)  # it came back in time
    moves, outcome = ours(faults=(Fault("hang", 1.0, 1.045),))
    assert moves == []
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    assert 0 < outcome.light.sum() <= 50 * 20  # no more than came in one budget


def test_a_hang_of_half_a_second_opens_and_no_event_waits_for_it() -> None:
    moves, outcome = ours(faults=(Fault("hang", 1.0, 1.5),))
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    assert states(moves)[:2] == FAILED and states(moves)[-1] == CLOSED
    assert moves[0].at < 1.2 and moves[-1].at < 3.5


def test_an_error_storm_is_answered_by_the_stand_in() -> None:
    moves, outcome = ours(faults=(Fault("error", 1.0, 1.5),))
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    # 250 ms open, a failed probe, 500 ms open: three rounds would be 1.75 s.
    assert states(moves) == [*FAILED, *FAILED, CLOSED]
    assert moves[0].at == pytest.approx(1.0036, abs=0.002)  # the third failed batch
    opened = [move.until - move.at for move in moves if move.after is State.OPEN]
    assert opened == pytest.approx([0.25, 0.5])


def test_a_stopped_process_loses_nothing_and_is_late_only_for_what_was_late_when_it_went_on() -> None:
    moves, outcome = ours(pauses=((1.0, 1.3),))
    assert moves == []  # the batch that was under way ended at once, as far as the device is concerned
    assert outcome.lost == 0
    late_anyway = (outcome.arrived + 0.050 < 1.3 + 0.004) & (outcome.arrived >= 0.999)
    missed = outcome.missed
    assert not missed[~late_anyway & (outcome.arrived < 1.29 - 0.035)].any()
    assert 5_000 <= missed.sum() <= 5_300  # 250 ms of rows at 20 a millisecond are late when it wakes


def test_a_wall_clock_set_back_changes_nothing() -> None:
    assert (ours()[1].answered == ours(wall_jumps=((1.0, -3600.0),))[1].answered).all()


def test_a_wall_clock_set_forward_makes_events_look_late_and_the_stand_in_answers_them_in_time() -> None:
    moves, outcome = ours(wall_jumps=((1.0, 3600.0), (1.5, -3600.0)))
    assert moves == []
    assert (outcome.missed.sum(), outcome.lost) == (0, 0)
    during = (outcome.arrived >= 1.0) & (outcome.arrived < 1.5)
    assert outcome.light[during].mean() > 0.9
    assert not outcome.light[outcome.arrived >= 1.51].any()


def test_same_seed_same_outcome_to_the_last_row() -> None:
    scenario = Scenario(seconds=0.5, rate=60_000.0, bursts=((0.2, 0.3, 5.0),), mix=(0.5, 0.5), seed=5)
    for make in RULES.values():
        first, second = simulate(scenario, make)[1], simulate(scenario, make)[1]
        assert (first.answered == second.answered).all() and (first.light == second.light).all()


@pytest.mark.parametrize("load", [0.3, 0.8, 0.95, 1.1, 1.5])
def test_fewer_misses_than_the_other_rules_at_every_load(load: float) -> None:
    scenario = Scenario(seconds=1.0, rate=load * 256 / 3.56e-3, seed=1)
    misses = {name: miss_ratio(simulate(scenario, make)[1]) for name, make in RULES.items()}
    assert misses["scorelane"] == 0.0
    assert all(misses["scorelane"] <= other for other in misses.values())
    if load > 1:  # the others can only be late or refuse
        assert min(ratio for name, ratio in misses.items() if name != "scorelane") > 0.09


def test_static_timer_waits_for_its_delay_and_no_longer() -> None:
    _, outcome = simulate(Scenario(**{**EVEN, "rate": 1000.0}), RULES["timer 5 ms"])  # type: ignore[arg-type]
    # The oldest of 6 rows waits 5 ms, then 1 ms + 6 * 10 us, then 2 ms.
    assert outcome.latency(1.0) == pytest.approx(5e-3 + 1.06e-3 + 2e-3, abs=1e-4)


def test_cork_cancels_the_oldest_when_it_is_predicted_late() -> None:
    scenario = Scenario(**{**EVEN, "seconds": 0.5, "rate": 200_000.0})  # type: ignore[arg-type]
    _, outcome = simulate(scenario, RULES["CORK"])
    assert outcome.lost > 0
    answered = outcome.answered[~np.isinf(outcome.answered)] - outcome.arrived[~np.isinf(outcome.answered)]
    assert answered.max() < 0.060  # whoever is answered is answered soon


def test_ranges_are_joined() -> None:
    assert merged([(0, 2), (2, 5), (7, 7), (8, 9)]) == [(0, 5), (8, 9)]


def test_command_prints_a_line_for_each_load_and_a_column_for_each_rule() -> None:
    result = CliRunner().invoke(command, ["--seconds", "0.2", "--load", "0.5", "--load", "1.2"])
    assert result.exit_code == 0, result.output
    assert all(name.split()[0] in result.output for name in RULES)
    assert "50%" in result.output and "120%" in result.output


def test_command_runs_a_named_scenario() -> None:
    result = CliRunner().invoke(command, ["--seconds", "0.5", "--load", "0.3", "--scenario", "errors"])
    assert result.exit_code == 0, result.output
    assert "errors" in result.output
