"""Event counts per id, decayed."""

import numpy as np
import pytest

from worker.activity import Activity


def test_counts_events_per_id() -> None:
    activity = Activity(100, half_life_s=10.0)
    activity.see(np.array([1, 2, 2, 101], dtype=np.int32), 0.0)
    assert activity.counts(np.array([1, 2, 3, 101]), 0.0).tolist() == [2.0, 2.0, 0.0, 2.0]  # 101 shares with 1


def test_counts_halve_in_the_half_life() -> None:
    activity = Activity(10, half_life_s=10.0)
    activity.see(np.array([1] * 8), 0.0)
    activity.see(np.array([1]), 10.0)
    assert activity.counts(np.array([1]), 20.0)[0] == pytest.approx(2.5)


def test_counts_stay_right_over_any_time() -> None:
    activity = Activity(10, half_life_s=1.0)
    for second in range(200):
        activity.see(np.array([1]), float(second))
    assert activity.counts(np.array([1]), 199.0)[0] == pytest.approx(2.0)
    assert activity.counts(np.array([1]), 1e6)[0] == 0.0
    activity.see(np.array([1]), 1e6)
    assert activity.counts(np.array([1]), 1e6)[0] == 1.0


def test_a_clock_that_goes_back_ages_nothing() -> None:
    activity = Activity(10, half_life_s=1.0)
    activity.see(np.array([1]), 5.0)
    assert activity.counts(np.array([1]), 1.0)[0] == 1.0


def test_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Activity(0)
