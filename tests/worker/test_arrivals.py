"""Arrival rate: a proper belief from the first second on, forgotten at the stated pace."""

from math import exp, lgamma, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.arrivals import Arrivals, batch_rows, peak
from worker.service_time import ServiceTime


def gamma_below(shape: float, rate: float) -> float:
    """P(Gamma(shape, 1) <= rate) by the power series of the incomplete gamma function."""
    term = total = 1 / shape
    k = shape
    while term > total * 1e-15:
        k += 1
        term *= rate / k
        total += term
    return exp(shape * log(rate) - rate - lgamma(shape) + log(total))


def test_nothing_seen_is_jeffreys_prior() -> None:
    arrivals = Arrivals(0.0, memory=1.0)
    assert arrivals.rate(0.0) == pytest.approx(0.5 / 0.01)


def test_steady_arrivals_give_their_rate() -> None:
    arrivals = Arrivals(0.0, memory=1.0)
    for tick in range(1, 1001):
        arrivals.observe(100, tick * 0.01)
    # (0.5 + 10,000 * 1 s of memory) / (0.01 + 1): the prior pulls by 1 %.
    assert arrivals.rate(10.0) == pytest.approx(10_000.5 / 1.01, rel=1e-3)


def test_one_long_interval_weighs_rows_and_seconds_alike() -> None:
    arrivals = Arrivals(0.0, memory=1.0)
    arrivals.observe(50_000, 50.0)
    assert arrivals.rate(50.0) == pytest.approx(1000.5 / 1.01, rel=1e-3)


def test_silence_halves_the_rate_in_the_half_life_of_the_memory() -> None:
    arrivals = Arrivals(0.0, memory=1.0)
    for tick in range(1, 1001):
        arrivals.observe(1000, tick * 0.01)
    assert arrivals.rate(10.0 + log(2)) == pytest.approx(arrivals.rate(10.0) / 2, rel=1e-3)


def test_a_burst_of_ten_is_known_after_a_fifth_of_the_memory() -> None:
    arrivals = Arrivals(0.0, memory=1.0)
    for tick in range(1, 1001):
        arrivals.observe(10, tick * 0.01)
    for tick in range(1, 21):
        arrivals.observe(100, 10.0 + tick * 0.01)
    # 1000 + 9000 * (1 - e^-0.2) = 2631
    assert arrivals.rate(10.2) == pytest.approx(2631 / 1.01, rel=0.01)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("rows", [0, 1, 10, 1000])
def test_upper_rate_is_the_posterior_quantile(rows: int, quantile: float) -> None:
    arrivals = Arrivals(0.0, memory=1.0)
    arrivals.observe(rows, 1e-12)  # all weight on the rows, none on the second: Gamma(0.5 + rows, 0.01)
    upper = arrivals.upper(1e-12, quantile)
    assert gamma_below(0.5 + rows, upper * 0.01) == pytest.approx(quantile, abs=0.02)


def test_a_clock_that_goes_back_adds_no_time() -> None:
    arrivals = Arrivals(10.0, memory=1.0)
    arrivals.observe(100, 11.0)
    before = arrivals.rate(11.0)
    assert arrivals.rate(5.0) == before
    arrivals.observe(0, 5.0)
    assert arrivals.rate(11.0) == before


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 10**6)), max_size=50), st.floats(0, 1e4))
def test_rates_are_positive_and_bounded_by_the_rows_seen(steps: list[tuple[float, int]], later: float) -> None:
    arrivals, now = Arrivals(0.0), 0.0
    for elapsed, rows in steps:
        now += elapsed
        arrivals.observe(rows, now)
    now += later
    assert 0 < arrivals.rate(now) <= (0.5 + sum(rows for _, rows in steps)) / 0.01
    assert arrivals.upper(now, 0.99) > arrivals.rate(now) or arrivals.rate(now) < 0.5 / 0.01


def test_memory_must_be_positive() -> None:
    with pytest.raises(ValueError, match="memory"):
        Arrivals(0.0, memory=0.0)


SERVICE = ServiceTime(prior=(1e-3 / 1.5, 1e-5 / 1.5))  # predicts 1 ms + 10 us a row


def test_batch_is_as_large_as_keeping_up_demands() -> None:
    # n / (1 ms + n * 10 us) = 50,000 / s at n = 50 / 0.5
    assert batch_rows(SERVICE, 50_000, budget=0.05, queued=0) == 100


def test_slow_arrivals_need_no_batching() -> None:
    assert batch_rows(SERVICE, 100, budget=0.05, queued=0) == 1


def test_batch_takes_what_waits() -> None:
    assert batch_rows(SERVICE, 100, budget=0.05, queued=180) == 180
    assert batch_rows(SERVICE, 100, budget=0.05, queued=10_000) == 256


def test_more_than_the_engine_can_serve_fills_batches() -> None:
    assert batch_rows(SERVICE, 1e6, budget=0.05, queued=0) == 256


def test_budget_bounds_the_batch() -> None:
    assert batch_rows(SERVICE, 1e6, budget=2e-3, queued=256) == pytest.approx(100, abs=1)
    assert batch_rows(SERVICE, 1e6, budget=1e-4, queued=256) == 1


def test_batch_that_would_fill_too_late_is_smaller() -> None:
    # Keeping up with 90,000 / s takes 900 rows. In 3 ms (3 - 1) * 90 / 1.9 = 94 of them arrive and are scored.
    assert batch_rows(SERVICE, 90_000, budget=3e-3, queued=0) == 94


def test_the_peak_of_a_trace_is_that_of_its_busiest_second() -> None:
    quiet = [10.0 * index for index in range(1000)]  # 100 a second for 10 s
    busy = [5000.0 + 2.0 * index for index in range(1000)]  # 500 a second more for 2 s
    assert peak([]) == 0.0
    assert 100 < peak(quiet) < 125
    # After 2 s with a memory of 1 s the mean has taken 1 - exp(-2) of the step, and its upper bound is above that.
    assert 100 + 500 * 0.86 < peak(quiet + busy) < 640
