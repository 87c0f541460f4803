"""Earliest deadline first over chunks, in arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.edf import GRAIN_S, EarliestFirst, Pick


def rows(picks: list[Pick[str]]) -> list[tuple[str, list[int]]]:
    return [(pick.source, pick.rows.tolist()) for pick in picks]


def queue(*offers: tuple[str, list[float]], timeout: float = 10.0, now: float = 0.0) -> EarliestFirst[str]:
    waiting = EarliestFirst[str](timeout)
    for source, deadlines in offers:
        waiting.offer(source, np.arange(len(deadlines)), np.array(deadlines), 100.0, now)
    return waiting


def test_rows_due_first_leave_first_across_chunks() -> None:
    waiting = queue(("a", [1.0, 3.0, 5.0]), ("b", [2.0, 4.0, 6.0]))
    assert waiting.earliest == 1.0
    assert rows(waiting.take(3)) == [("a", [0, 1]), ("b", [0])]
    assert rows(waiting.take(2)) == [("b", [1]), ("a", [2])]
    assert (waiting.rows, waiting.nbytes, waiting.earliest) == (1, 100.0, 6.0)


def test_rows_of_one_chunk_are_sorted_by_deadline_and_given_ascending() -> None:
    waiting = queue(("a", [5.0, 1.0, 4.0, 2.0]))
    assert rows(waiting.take(2)) == [("a", [1, 3])]
    assert rows(waiting.take(2)) == [("a", [0, 2])]


def test_deadlines_within_the_grain_are_taken_in_pieces() -> None:
    close = [1.0, 1.0002, 1.0004]
    assert rows(queue(("a", close), ("b", close)).take(6)) == [("a", [0, 1, 2]), ("b", [0, 1, 2])]


def test_a_late_row_waits_behind_those_that_are_not_and_a_lax_one_is_due_at_the_timeout() -> None:
    waiting = queue(("late", [-100.0, 0.9]), ("lax", [1e9]), ("tight", [1.0]), timeout=2.0, now=1.0)
    assert waiting.earliest == 1.0
    assert rows(waiting.take(1)) == [("tight", [0])]
    assert waiting.earliest == 3.0
    assert rows(waiting.take(3)) == [("late", [0, 1]), ("lax", [0])]


def test_last_due_rows_are_dropped_across_chunks() -> None:
    waiting = queue(("a", [1.0, 3.0, 5.0]), ("b", [2.0, 4.0, 6.0]))
    assert sorted(rows(waiting.drop_last(3))) == [("a", [2]), ("b", [1, 2])]
    assert rows(waiting.take(9)) == [("a", [0, 1]), ("b", [0])]
    assert waiting.drop_last(1) == []


def test_of_equal_deadlines_the_newest_are_dropped() -> None:
    waiting = queue(("a", [1.0] * 3), ("b", [1.0] * 3))
    assert rows(waiting.drop_last(4)) == [("b", [0, 1, 2]), ("a", [2])]


def test_rows_due_by_a_limit_are_dropped_and_the_others_keep_their_order() -> None:
    waiting = queue(("a", [1.0, 3.0, 5.0]), ("b", [2.0, 4.0, 6.0]))
    assert waiting.drop_due(0.9) == []
    assert rows(waiting.drop_due(3.0)) == [("a", [0, 1]), ("b", [0])]
    assert (waiting.rows, waiting.nbytes, waiting.earliest) == (3, 300.0, 4.0)
    assert rows(waiting.take(3)) == [("b", [1, 2]), ("a", [2])]
    assert rows(queue(("a", [1.0])).drop_due(9.0)) == [("a", [0])]


def test_rows_expire_by_their_offer_and_not_by_their_deadline() -> None:
    waiting = queue(("a", [9.0, 9.5]), timeout=1.0)
    waiting.offer("b", np.arange(1), np.array([0.6]), 100.0, 0.5)
    assert waiting.expire(0.99) == []
    assert rows(waiting.expire(1.0)) == [("a", [0, 1])]
    assert waiting.oldest == 0.5
    assert rows(waiting.take(9)) == [("b", [0])]
    assert waiting.oldest == waiting.earliest == float("inf")


def test_nothing_offered_is_nothing_waiting() -> None:
    waiting = queue(("a", []))
    assert (waiting.rows, waiting.take(5)) == (0, [])


@pytest.mark.parametrize(
    ("taken", "ranges"), [([], []), ([3], [(3, 4)]), ([0, 1, 2, 5, 7, 8], [(0, 3), (5, 6), (7, 9)])]
)
def test_ranges_of_a_pick(taken: list[int], ranges: list[tuple[int, int]]) -> None:
    assert Pick("a", np.array(taken, dtype=np.int64)).ranges() == ranges


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=6),
    st.lists(st.tuples(st.sampled_from(["take", "drop"]), st.integers(0, 8)), max_size=20),
)
def test_same_as_a_sorted_list(offers: list[list[int]], steps: list[tuple[str, int]]) -> None:
    waiting = EarliestFirst[int](100.0)
    reference: list[tuple[float, int, int]] = []
    for source, deadlines in enumerate(offers):
        dues: NDArray[np.float64] = np.array(deadlines, dtype=np.float64)
        waiting.offer(source, np.arange(len(deadlines)), dues, 1.0, 0.0)
        reference += [(due, source, row) for row, due in enumerate(dues.tolist())]
    for step, count in steps:
        picks = waiting.take(count) if step == "take" else waiting.drop_last(count)
        left = [(pick.source, row) for pick in picks for row in pick.rows.tolist()]
        gone = sorted(entry for entry in reference if entry[1:] in left)
        reference = [entry for entry in reference if entry[1:] not in left]
        assert len(gone) == len(left) == min(count, len(gone) + len(reference))
        if gone and reference:
            kept = [due for due, _, _ in reference]
            assert gone[-1][0] <= min(kept) + GRAIN_S if step == "take" else gone[0][0] >= max(kept)
        assert waiting.rows == waiting.nbytes == len(reference)
        assert waiting.earliest == min((due for due, _, _ in reference), default=float("inf"))
