"""Alarms: raised on evidence, cleared when it is over, never the new normal."""

import numpy as np
import pytest

from schemas.alarm import Alarm
from worker.alarms import AlarmCause, AlarmPolicy, Alarms, told


class Traffic:
    """Rows of one latency every 50 ms, with a check after each."""

    def __init__(self, policy: AlarmPolicy) -> None:
        self.alarms = Alarms("din", policy)
        self.step = 0

    @classmethod
    def known(cls, *, window_s: float = 1.0, times: float = 1.0) -> "Traffic":
        """What is normal is learned, for good: a p99 of 20 ms and a mean of 10 ms, or `times` these."""
        traffic = cls(AlarmPolicy(window_s=window_s, learn_s=1.0, memory_s=1e9))
        rows = np.array([0.020] * 2 + [0.960 / 98] * 98) * times
        for _ in range(60):
            traffic.step += 1
            traffic.alarms.answered(rows, 0, traffic.now)
            assert traffic.alarms.check(traffic.now, 0.0) == []
        return traffic

    @property
    def now(self) -> float:
        return self.step * 0.05

    def run(self, seconds: float, latency: float, *, rows: int = 100, late: int = 0, failed: int = 0) -> list[Alarm]:
        changed = []
        for _ in range(round(seconds / 0.05)):
            self.step += 1
            if rows:
                self.alarms.answered(np.full(rows, latency), late, self.now)
            if failed:
                self.alarms.failed(failed, self.now)
            changed += self.alarms.check(self.now, 1000 * self.now + 7)
        return changed


def causes(alarms: list[Alarm]) -> list[tuple[str, str]]:
    return [(alarm.state, alarm.cause) for alarm in alarms]


def test_latency_half_as_much_again_is_raised_after_the_hold_time_with_what_was_seen() -> None:
    traffic = Traffic.known()
    assert traffic.run(2.0, 0.010) == []
    [alarm] = traffic.run(1.0, 0.014, late=0) + traffic.run(1.5, 0.0155)
    assert (alarm.state, alarm.cause, alarm.topic, alarm.generation) == ("raised", "latency_mean", "din", 1)
    assert alarm.limit == pytest.approx(15.0)
    assert alarm.observed > alarm.limit
    assert alarm.time_ms % 50 == 7


def test_a_slow_tail_raises_the_p99_and_not_the_mean() -> None:
    traffic = Traffic.known()
    traffic.run(2.0, 0.010)
    changed = []
    for _ in range(20):
        traffic.alarms.answered(np.full(2, 0.040), 0, traffic.now)
        changed += traffic.run(0.05, 0.010)
    assert causes(changed) == [("raised", "latency_p99")]


def test_what_ends_before_the_hold_time_raises_nothing() -> None:
    traffic = Traffic.known(window_s=0.1)
    assert traffic.run(1.0, 0.010) == []
    assert traffic.run(0.05, 0.050) == []
    assert traffic.run(1.0, 0.010) == []


def test_cleared_only_after_a_quiet_time_below_the_lower_limit() -> None:
    traffic = Traffic.known()
    assert causes(traffic.run(2.0, 0.050)) == [("raised", "latency_p99"), ("raised", "latency_mean")]
    assert traffic.run(3.0, 0.0145) != []  # p99: below 0.8 * 30 ms
    assert traffic.alarms.raised == {AlarmCause.LATENCY_MEAN}  # mean: not below 0.8 * 15 ms
    assert causes(traffic.run(3.0, 0.0115)) == [("cleared", "latency_mean")]


def test_swinging_around_the_limit_changes_nothing_more() -> None:
    traffic = Traffic.known(window_s=0.05)
    assert causes(traffic.run(0.5, 0.016)) == [("raised", "latency_mean")]
    assert [traffic.run(0.2, latency) for latency in [0.0125, 0.016, 0.011, 0.016] * 10] == [[]] * 40


def test_few_rows_are_no_evidence() -> None:
    traffic = Traffic.known()
    traffic.run(1.0, 0.0, rows=0)
    assert traffic.run(5.0, 1.0, rows=4, late=4) == []  # 80 rows a window
    assert AlarmCause.MISSES.value in {alarm.cause for alarm in traffic.run(5.0, 1.0, rows=6, late=6)}


def test_no_traffic_clears() -> None:
    traffic = Traffic.known()
    traffic.run(2.0, 0.050)
    assert causes(traffic.run(3.0, 0.0, rows=0)) == [("cleared", "latency_p99"), ("cleared", "latency_mean")]


def test_misses_are_a_part_of_rows() -> None:
    traffic = Traffic.known()
    assert traffic.run(2.0, 0.010, late=1) == []
    [alarm] = traffic.run(2.0, 0.010, late=2)
    assert (alarm.cause, alarm.limit) == ("misses", 0.01)
    assert 0.01 < alarm.observed <= 0.02


def test_errors_count_where_another_engine_answered_and_where_none_did_yet() -> None:
    answered = Traffic.known()
    assert answered.run(2.0, 0.010, failed=5) == []
    assert causes(answered.run(2.0, 0.010, failed=8)) == [("raised", "errors")]
    silent = Traffic.known()
    assert causes(silent.run(2.0, 0.010, rows=0, failed=100)) == [("raised", "errors")]


def dead_letters(traffic: Traffic, seconds: float, records: int, dead: int) -> list[Alarm]:
    changed = []
    for _ in range(round(seconds / 0.05)):
        traffic.alarms.settled(records, dead, traffic.now + 0.05)
        changed += traffic.run(0.05, 0.010, rows=records - dead)
    return changed


def test_dead_letters_are_a_part_of_all_records() -> None:
    traffic = Traffic.known()
    assert dead_letters(traffic, 2.0, 100, 5) == []
    [alarm] = dead_letters(traffic, 2.0, 100, 6)
    assert (alarm.state, alarm.cause, alarm.limit) == ("raised", "dead_letters", 0.05)
    assert 0.05 < alarm.observed <= 0.06
    assert dead_letters(traffic, 2.0, 100, 5) == [], "not below 0.8 of the limit"
    assert causes(dead_letters(traffic, 2.5, 100, 4)) == [("cleared", "dead_letters")]


def test_a_topic_of_dead_letters_alone_is_told_and_few_of_them_are_not() -> None:
    assert dead_letters(Traffic(AlarmPolicy()), 5.0, 4, 4) == []  # 80 a window
    assert causes(dead_letters(Traffic(AlarmPolicy()), 5.0, 6, 6)) == [("raised", "dead_letters")]


def test_what_is_normal_is_learned_beside_dead_letters() -> None:
    traffic = Traffic(AlarmPolicy())
    assert causes(dead_letters(traffic, 12.0, 200, 100)) == [("raised", "dead_letters")]
    assert causes(traffic.run(2.0, 0.030)) == [
        ("raised", "latency_p99"), ("raised", "latency_mean"), ("cleared", "dead_letters")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "observed", "limit", "text"),
    [
        (AlarmCause.QUEUE_AGE, 352.91, 100.0, "queue_age: 352.9 ms, limit 100 ms"),
        (AlarmCause.LATENCY_P99, 31.0, 30.0, "latency_p99: 31 ms, limit 30 ms"),
        (AlarmCause.MISSES, 0.0234, 0.01, "misses: 2.34 %, limit 1 %"),
        (AlarmCause.ERRORS, 0.5, 0.05, "errors: 50 %, limit 5 %"),
        (AlarmCause.DEAD_LETTERS, 1.0, 0.05, "dead_letters: 100 %, limit 5 %"),
        (AlarmCause.DEVICE_LOST, 1.0, 0.0, "device_lost"),
    ],
)
def test_the_log_has_units(cause: AlarmCause, observed: float, limit: float, text: str) -> None:
    alarms = Alarms("din")
    alarms.answered(np.full(100, 0.01), 0, 0.0)
    alarms.settled(100, 100, 0.0)
    assert told(Alarm("raised", cause, "din", observed, limit, 0, 1), alarms, 0.0) == text


def test_the_log_says_when_nothing_is_known_of_a_part() -> None:
    alarms = Alarms("din")
    misses = Alarm("cleared", "misses", "din", 0.0, 0.01, 0, 1)
    assert told(misses, alarms, 0.0) == "misses: no events, limit 1 %"
    alarms.answered(np.full(12, 0.01), 0, 0.0)
    alarms.settled(100, 88, 0.0)
    assert told(misses, alarms, 0.0) == "misses: only 12 events, limit 1 %"
    dead = Alarm("cleared", "dead_letters", "din", 0.88, 0.05, 0, 1)
    assert told(dead, alarms, 0.0) == "dead_letters: 88 %, limit 5 %"
    age = Alarm("cleared", "queue_age", "din", 0.0, 100.0, 0, 1)
    assert told(age, alarms, 60.0) == "queue_age: 0 ms, limit 100 ms"


def test_queue_age_is_in_milliseconds() -> None:
    traffic = Traffic.known()
    traffic.alarms.queue_age(0.150)
    [alarm] = traffic.run(1.0, 0.010)
    assert (alarm.cause, alarm.observed, alarm.limit) == ("queue_age", 150.0, 100.0)
    traffic.alarms.queue_age(0.0)
    assert causes(traffic.run(2.0, 0.010)) == [("cleared", "queue_age")]


def test_a_lost_device_is_raised_at_once() -> None:
    traffic = Traffic.known()
    traffic.alarms.device_lost(True)
    [alarm] = traffic.run(0.05, 0.010)
    assert (alarm.state, alarm.cause, alarm.observed, alarm.limit) == ("raised", "device_lost", 1.0, 0.0)
    traffic.alarms.device_lost(False)
    assert causes(traffic.run(2.0, 0.010)) == [("cleared", "device_lost")]


def test_generations_count_the_changes() -> None:
    traffic = Traffic.known()
    changed = traffic.run(2.0, 0.050) + traffic.run(3.0, 0.010) + traffic.run(2.0, 0.050)
    assert [alarm.generation for alarm in changed] == [1, 2, 3, 4, 5, 6]


def test_what_is_normal_is_learned_and_until_then_latency_raises_nothing() -> None:
    traffic = Traffic(AlarmPolicy())
    assert traffic.run(5.0, 0.010) + traffic.run(5.0, 0.012) == []
    assert traffic.run(2.0, 0.013) == []
    changed = traffic.run(2.0, 0.030)
    assert causes(changed) == [("raised", "latency_p99"), ("raised", "latency_mean")] or causes(changed) == [
        ("raised", "latency_mean"),
        ("raised", "latency_p99"),
    ]
    assert next(a.limit for a in changed if a.cause == "latency_mean") == pytest.approx(1.5 * 11.0, rel=0.05)


def test_an_alarm_does_not_become_the_normal_state() -> None:
    traffic = Traffic(AlarmPolicy(memory_s=1.0))
    traffic.run(15.0, 0.010)
    traffic.run(60.0, 0.050)
    assert traffic.alarms.raised == {AlarmCause.LATENCY_P99, AlarmCause.LATENCY_MEAN}


def test_a_slow_drift_is_followed() -> None:
    traffic = Traffic(AlarmPolicy(memory_s=5.0))
    traffic.run(15.0, 0.010)
    assert [traffic.run(10.0, 0.010 * 1.1**step) for step in range(1, 9)] == [[]] * 8  # 2.1 times, 10 % a step


def test_short_latencies_raise_nothing_however_much_they_grow() -> None:
    traffic = Traffic.known(times=0.01)
    assert traffic.run(3.0, 0.004) == []


@pytest.mark.parametrize(
    "options", [{"window_s": 0}, {"min_rows": 0}, {"factor": 1}, {"miss_part": 0}, {"clear_part": 1}]
)
def test_impossible_policies_name_their_key(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        AlarmPolicy(**options)  # type: ignore[arg-type]
