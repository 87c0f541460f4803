"""Sums over the last seconds."""

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.window import Window


def test_what_is_older_than_the_window_is_forgotten_slice_by_slice() -> None:
    window = Window(1.0, 1, slices=4)
    window.add(0.1, [1])
    window.add(0.3, [10])
    window.add(0.9, [100])
    assert window.totals(0.99)[0] == 111
    assert window.totals(1.0)[0] == 110  # slice [0, 0.25) left
    assert window.totals(1.25)[0] == 100
    assert window.totals(1.8)[0] == 0


def test_a_long_silence_empties_it() -> None:
    window = Window(1.0, 2)
    window.add(5.0, [3, 4])
    assert window.totals(1000.0).tolist() == [0, 0]
    window.add(1000.0, [1, 2])
    assert window.totals(1000.0).tolist() == [1, 2]


def test_an_earlier_time_counts_into_the_newest_slice() -> None:
    window = Window(1.0, 1)
    window.add(5.0, [1])
    window.add(3.0, [1])
    assert window.totals(5.0)[0] == 2


def test_clear_forgets_everything() -> None:
    window = Window(1.0, 1)
    window.add(0.0, [5])
    window.clear()
    assert window.totals(0.0)[0] == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 9)), max_size=40))
def test_totals_are_those_of_the_slices_in_the_window(steps: list[tuple[float, int]]) -> None:
    window, now, seen = Window(1.0, 1, slices=5), 0.0, []
    for elapsed, count in steps:
        now += elapsed
        window.add(now, [count])
        seen.append((floor(now / 0.2), count))
        assert window.totals(now)[0] == sum(count for at, count in seen if at > floor(now / 0.2) - 5)


def test_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Window(0.0, 1)
