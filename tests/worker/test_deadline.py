import math

import numpy as np
import pytest

from worker.deadline import DeadlineRule, header_deadline_ms

NAN = float("nan")


def one(
    rule: DeadlineRule, timestamp_ms: float, own_ms: float = NAN, *, now: float = 100.0, wall_ms: float = 10_000.0
) -> float:
    return float(rule.deadlines(np.array([timestamp_ms]), np.array([own_ms]), now=now, wall_ms=wall_ms)[0])


def test_budget_counts_from_the_timestamp() -> None:
    # 30 ms old, 50 ms budget: 20 ms are left.
    assert one(DeadlineRule(50.0), 9_970.0) == pytest.approx(100.020)


def test_budget_counts_from_arrival_where_the_topic_says_so() -> None:
    assert one(DeadlineRule(50.0, "arrival"), 9_970.0) == pytest.approx(100.050)


def test_a_late_event_has_a_deadline_in_the_past() -> None:
    assert one(DeadlineRule(50.0), 9_000.0) == pytest.approx(99.050)


@pytest.mark.parametrize("timestamp_ms", [10_500.0, -1.0])
def test_a_timestamp_ahead_of_our_clock_or_absent_counts_as_now(timestamp_ms: float) -> None:
    assert one(DeadlineRule(50.0), timestamp_ms) == pytest.approx(100.050)


@pytest.mark.parametrize(
    ("meaning", "own_ms", "left_s"),
    [
        ("absolute", 10_010.0, 0.010),
        ("absolute", 20_000.0, 0.030),  # the budget is earlier
        ("relative", 25.0, 0.005),  # 25 ms after a timestamp 20 ms ago
        ("ignore", 10_010.0, 0.030),
    ],
)
def test_the_events_own_deadline_can_only_shorten(meaning: str, own_ms: float, left_s: float) -> None:
    rule = DeadlineRule(50.0, "timestamp", meaning)  # type: ignore[arg-type]
    assert one(rule, 9_980.0, own_ms) == pytest.approx(100.0 + left_s)


def test_rows_are_independent() -> None:
    deadlines = DeadlineRule(50.0).deadlines(
        np.array([10_000.0, 9_990.0, 9_990.0]), np.array([NAN, 10_001.0, NAN]), now=1.0, wall_ms=10_000.0
    )
    assert deadlines == pytest.approx([1.050, 1.001, 1.040])


@pytest.mark.parametrize("value", [b"soon", b"", b"nan", b"inf", b"-1e308", b"9e15", b"\xff", None])
def test_a_header_that_is_no_number_is_no_deadline(value: bytes | None) -> None:
    assert math.isnan(header_deadline_ms([("deadline_ms", value)]))


def test_the_header_is_read() -> None:
    assert header_deadline_ms([("trace", b"1"), ("deadline_ms", b"1234.5")]) == 1234.5
    assert math.isnan(header_deadline_ms([]))
