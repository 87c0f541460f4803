import io
import logging
import os
import re
from collections.abc import Iterator

import pytest

from worker.cli.logs import KINDS, NeverBlocking, RateLimit


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


@pytest.fixture
def pipe() -> Iterator[tuple[int, NeverBlocking]]:
    """An end that the test reads, and the handler of the other one."""
    mine, theirs = os.pipe()
    os.set_blocking(mine, False)
    with os.fdopen(theirs, "w") as stream:
        yield mine, NeverBlocking(stream)
    os.close(mine)


def read(end: int) -> str:
    text = b""
    try:
        while piece := os.read(end, 1 << 20):
            text += piece
    except BlockingIOError:
        pass
    return text.decode()


@pytest.mark.parametrize("size", [30, 5000])
def test_a_pipe_that_nobody_reads_stops_nobody_and_what_was_left_out_is_counted(
    pipe: tuple[int, NeverBlocking], size: int
) -> None:
    end, handler = pipe
    lines = [f"{number:05d}" + "x" * size for number in range(4000)]
    for line in lines:
        handler.emit(record(line))
    seen = read(end).splitlines()
    whole = [line for line in seen if len(line) == size + 5]
    assert whole == lines[: len(whole)] and len(whole) > 5
    handler.emit(record("again"))
    handler.emit(record("and on"))
    again = read(end)
    left_out = len(lines) - len(whole)
    assert again.lstrip() == f"lines left out, since nobody read them: {left_out}\nagain\nand on\n"
    assert again.startswith("\n") is (len(seen) > len(whole)), "a line that was cut has its end first"


def test_a_stream_that_is_no_file_has_all_lines() -> None:
    stream = io.StringIO()
    handler = NeverBlocking(stream)
    for number in range(3):
        handler.emit(record(f"{number}"))
    assert re.findall(r"\d", stream.getvalue()) == ["0", "1", "2"]
