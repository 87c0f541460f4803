"""Latency window: means exact, quantiles to the width of a bucket."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.latency import PER_OCTAVE, Latencies


def test_nothing_counted_is_zero() -> None:
    window = Latencies(1.0)
    assert (window.count(0.0), window.mean(0.0), window.quantile(0.99, 0.0)) == (0, 0.0, 0.0)


def test_mean_is_exact_and_forgets() -> None:
    window = Latencies(1.0)
    window.add(np.array([0.010, 0.030]), 0.0)
    window.add(np.array([0.050]), 0.95)
    assert window.mean(0.95) == pytest.approx(0.030)
    assert (window.count(1.0), window.mean(1.0)) == (1, pytest.approx(0.050))


def test_negative_latencies_count_as_none() -> None:
    window = Latencies(1.0)
    window.add(np.array([-5.0, 0.010]), 0.0)
    assert window.mean(0.0) == pytest.approx(0.005)


@given(st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_quantile_is_within_a_bucket_of_the_sorted_one(seconds: list[float], q: float) -> None:
    window = Latencies(1.0)
    window.add(np.array(seconds), 0.0)
    exact = sorted(seconds)[max(0, int(np.ceil(q * len(seconds) - 1e-9)) - 1)]
    step = 2 ** (1 / PER_OCTAVE) * (1 + 1e-9)
    assert exact / step <= window.quantile(q, 0.0) <= exact * step
