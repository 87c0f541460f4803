"""Many like events in one line: the first at once, the others counted, none forgotten."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from worker.folded import Folded


def told(folded: Folded[str, int], now: float, ending: bool = False) -> list[tuple[str, float, dict[str, int], int]]:
    return [(key, s.began, dict(s.counts), s.example) for key, s in folded.due(now, ending=ending)]


def test_the_first_is_told_at_once_and_the_next_ones_together_after_the_interval() -> None:
    folded = Folded[str, int](5.0)
    folded.add("a", 10.0, {"rows": 3}, 1)
    assert told(folded, 10.0) == [("a", 10.0, {"rows": 3}, 1)]
    folded.add("a", 11.0, {"rows": 2}, 2)
    folded.add("a", 12.0, {"rows": 4, "odd": 1}, 3)
    assert told(folded, 14.9) == []
    assert told(folded, 15.0) == [("a", 11.0, {"rows": 6, "odd": 1}, 2)]
    assert told(folded, 100.0) == [], "nothing came since"
    folded.add("a", 101.0, {"rows": 1}, 4)
    assert told(folded, 101.0) == [("a", 101.0, {"rows": 1}, 4)]


def test_keys_do_not_wait_for_each_other() -> None:
    folded = Folded[str, int](5.0)
    folded.add("a", 10.0, {"rows": 1}, 1)
    folded.due(10.0)
    folded.add("a", 11.0, {"rows": 1}, 2)
    folded.add("b", 12.0, {"rows": 1}, 3)
    assert told(folded, 12.0) == [("b", 12.0, {"rows": 1}, 3)]
    assert told(folded, 13.0, ending=True) == [("a", 11.0, {"rows": 1}, 2)]


def test_what_is_counted_beside_needs_something_to_be_beside_of() -> None:
    folded = Folded[str, int](5.0)
    folded.beside("a", {"all": 1000})
    folded.add("a", 10.0, {"rows": 1}, 1)
    folded.beside("a", {"all": 7})
    assert told(folded, 10.0) == [("a", 10.0, {"rows": 1, "all": 7}, 1)]


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from("ab"), st.integers(1, 9)), max_size=60))
def test_nothing_is_lost_and_lines_of_a_key_are_an_interval_apart(steps: list[tuple[float, str, int]]) -> None:
    folded = Folded[str, int](5.0)
    now = 0.0
    came: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    lines: dict[str, list[float]] = {"a": [], "b": []}
    for wait, key, rows in steps:
        now += wait
        folded.add(key, now, {"rows": rows}, 0)
        came[key] += rows
        for due, since in folded.due(now):
            seen[due] += since.counts["rows"]
            lines[due].append(now)
    assert all(later - earlier >= 5.0 for at in lines.values() for earlier, later in pairwise(at))
    for due, since in folded.due(now, ending=True):
        seen[due] += since.counts["rows"]
    assert seen == came
