import logging

from worker.cli.logs import KINDS, Folded


def record(text: str, *values: object, name: str = "aiokafka") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, text, values, None)


def test_one_line_of_a_kind_in_ten_seconds_with_the_number_of_those_left_out() -> None:
    now = 100.0
    folded = Folded(lambda: now)
    assert folded.filter(record("no node %s", 1))
    assert folded.filter(record("no metadata"))
    now = 109.9
    assert not folded.filter(record("no node %s", 1))
    assert not folded.filter(record("no node %s", 2))
    now = 110.0
    line = record("no node %s", 3)
    assert folded.filter(line)
    assert line.getMessage() == "no node 3 (2 more like it before)"
    other = record("no metadata")
    assert folded.filter(other) and other.getMessage() == "no metadata"


def test_the_workers_own_lines_all_come() -> None:
    folded = Folded(lambda: 0.0)
    assert all(folded.filter(record("late", name="scorelane.lane")) for _ in range(5))


def test_the_kinds_are_bounded_the_oldest_is_forgotten() -> None:
    folded = Folded(lambda: 0.0)
    assert all(folded.filter(record(f"kind {number}")) for number in range(KINDS + 1))
    assert not folded.filter(record(f"kind {KINDS}"))
    assert folded.filter(record("kind 0"))
