import logging

from worker.cli.logs import KINDS, RateLimit


def record(text: str, *values: object, name: str = "aiokafka") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, text, values, None)


def test_one_line_of_a_kind_in_ten_seconds_with_the_number_of_those_left_out() -> None:
    now = 100.0
    limit = RateLimit(lambda: now)
    assert limit.filter(record("no node %s", 1))
    assert limit.filter(record("no metadata"))
    now = 109.9
    assert not limit.filter(record("no node %s", 1))
    assert not limit.filter(record("no node %s", 2))
    now = 110.0
    line = record("no node %s", 3)
    assert limit.filter(line)
    assert line.getMessage() == "no node 3 (2 more like it before)"
    other = record("no metadata")
    assert limit.filter(other) and other.getMessage() == "no metadata"


def test_the_workers_own_lines_all_come() -> None:
    limit = RateLimit(lambda: 0.0)
    assert all(limit.filter(record("late", name="scorelane.lane")) for _ in range(5))


def test_the_kinds_are_bounded_the_oldest_is_forgotten() -> None:
    limit = RateLimit(lambda: 0.0)
    assert all(limit.filter(record(f"kind {number}")) for number in range(KINDS + 1))
    assert not limit.filter(record(f"kind {KINDS}"))
    assert limit.filter(record("kind 0"))
