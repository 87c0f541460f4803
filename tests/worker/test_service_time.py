"""Service time: learned from batches, not misled by one of them, quick after a change of speed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.service_time import MAX_MARGIN, PRIOR, ServiceTime


def feed(model: ServiceTime, a: float, b: float, batches: int, seed: int = 7, noise: float = 0.0) -> None:
    rng = random.Random(seed)
    for _ in range(batches):
        rows = rng.randint(1, 256)
        model.observe(rows, (a + b * rows) * (1 + noise * rng.random()))


def test_before_the_first_batch_the_prior_speaks() -> None:
    model = ServiceTime(prior=(2e-3, 1e-5))
    assert model.expected(100) == pytest.approx(3e-3)
    assert model.predict(100) == pytest.approx(4.5e-3)
    assert model.count == 0


def test_first_batch_replaces_the_scale_of_the_prior() -> None:
    model = ServiceTime(prior=(1e-3, 1e-5))
    model.observe(100, 0.2)
    assert model.expected(100) == pytest.approx(0.2)


def test_line_is_recovered_exactly_without_noise() -> None:
    model = ServiceTime()
    feed(model, 5e-4, 2e-6, 200)
    # The prior's slope keeps a pull of PRIOR_SPREAD² / variance(n) * mean(n)², 0.8 % for sizes spread over 1..256.
    assert model.expected(1) == pytest.approx(5e-4, rel=0.01)
    assert model.expected(256) == pytest.approx(5e-4 + 512e-6, rel=0.01)


def test_same_size_every_time_leaves_the_slope_to_the_prior() -> None:
    model = ServiceTime(prior=(1e-3, 1e-5))
    for _ in range(100):
        model.observe(100, 2e-3)
    assert model.expected(100) == pytest.approx(2e-3)
    assert model.expected(200) == pytest.approx(3e-3)


def test_a_prior_too_steep_for_the_times_seen_is_cut_at_an_intercept_of_zero() -> None:
    model = ServiceTime.measured([(10, 1e-3), (20, 11e-3)])
    for _ in range(300):
        model.observe(100, 10e-3)
    assert model.expected(100) == pytest.approx(10e-3, rel=1e-6)
    assert model.expected(50) >= 0


def test_one_hang_changes_the_prediction_by_one_step_of_the_margin() -> None:
    model = ServiceTime(quantile=0.95)
    feed(model, 1e-3, 1e-5, 300)
    before, fitted = model.predict(256), model.expected(256)
    model.observe(256, 0.5)
    assert model.expected(256) == fitted
    assert model.predict(256) == pytest.approx(before * 1.095)


def test_hangs_between_normal_batches_never_move_the_fit() -> None:
    model = ServiceTime()
    feed(model, 1e-3, 1e-5, 300)
    for _ in range(50):
        model.observe(128, 0.5)
        model.observe(128, 0.5)
        model.observe(128, 1e-3 + 128e-5)
    assert model.expected(128) == pytest.approx(2.28e-3, rel=0.01)
    assert model.predict(128) == pytest.approx(MAX_MARGIN * 2.28e-3, rel=0.01)  # two of three hang: the margin says so


@pytest.mark.parametrize("factor", [20.0, 5.0, 1 / 20])
def test_a_change_of_speed_is_learned_in_three_batches(factor: float) -> None:
    model = ServiceTime()
    feed(model, 1e-3, 1e-5, 300)
    for rows in (200, 40, 120):
        model.observe(rows, factor * (1e-3 + rows * 1e-5))
    for rows in (1, 64, 256):
        assert model.expected(rows) == pytest.approx(factor * (1e-3 + rows * 1e-5), rel=0.01)


def test_twice_as_slow_is_covered_by_the_margin_within_ten_batches() -> None:
    model = ServiceTime()
    feed(model, 1e-3, 1e-5, 300, noise=0.1)
    feed(model, 2e-3, 2e-5, 10, noise=0.1)
    assert model.predict(256) >= 2e-3 + 256 * 2e-5


def test_margin_settles_at_the_quantile() -> None:
    model = ServiceTime(quantile=0.9)
    rng = random.Random(3)
    feed(model, 1e-3, 0, 500, noise=0.5)
    over = 0
    for _ in range(4000):
        rows = rng.randint(1, 256)
        seconds = 1e-3 * (1 + 0.5 * rng.random())
        over += seconds > model.predict(rows)
        model.observe(rows, seconds)
    assert 0.07 < over / 4000 < 0.13


def test_warm_start_has_the_measured_line() -> None:
    model = ServiceTime.measured([(1, 1e-3), (64, 1.63e-3), (256, 3.55e-3)])
    assert model.expected(128) == pytest.approx(2.27e-3, rel=1e-6)
    model.observe(128, 0.5)  # a measurement is believed: the first batch may be an outlier
    assert model.expected(128) == pytest.approx(2.27e-3, rel=1e-6)


def test_no_measurements_is_the_prior() -> None:
    assert ServiceTime.measured([]).expected(0 + 100) == pytest.approx(PRIOR[0] + 100 * PRIOR[1])


def test_largest_batch_that_fits_a_budget() -> None:
    model = ServiceTime(prior=(1e-3, 1e-5))  # predicted: 1.5 * (1 ms + n * 10 us)
    assert model.fits(3.0e-3, most=256) == pytest.approx(100, abs=1)
    assert model.fits(1.0, most=256) == 256
    assert model.fits(1.5e-3, most=256) == 0
    assert model.fits(-1.0, most=256) == 0


@given(st.floats(1e-5, 10), st.integers(1, 1024), st.lists(st.integers(1, 1024), max_size=20))
def test_what_fits_is_predicted_to_fit(seconds: float, most: int, sizes: list[int]) -> None:
    model = ServiceTime()
    for rows in sizes:
        model.observe(rows, 2e-3 + rows * 3e-6)
    rows = model.fits(seconds, most)
    assert 0 <= rows <= most
    assert rows == 0 or model.predict(rows) <= seconds * (1 + 1e-9)
    assert rows == most or model.predict(rows + 1) > seconds * (1 - 1e-9)


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 1e4)), max_size=200))
def test_predictions_stay_finite_positive_and_rising(batches: list[tuple[int, float]]) -> None:
    model = ServiceTime()
    for rows, seconds in batches:
        model.observe(rows, seconds)
    times = [model.predict(rows) for rows in (1, 16, 256, 4096)]
    assert 0 < times[0] and times == sorted(times) and times[-1] < float("inf")


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (1, -1.0), (1, float("nan")), (1, float("inf"))])
def test_impossible_batches_are_refused(rows: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="rows must be >= 1"):
        ServiceTime().observe(rows, seconds)


@pytest.mark.parametrize("options", [{"quantile": 1.0}, {"prior": (0.0, 0.0)}, {"prior": (-1.0, 1.0)}])
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ServiceTime(**options)  # type: ignore[arg-type]


def test_a_start_by_measurements_forgets_what_was_there_and_keeps_the_object() -> None:
    points = [(1, 0.005), (64, 0.068), (256, 0.260)] * 3
    model = ServiceTime(prior=(100.0, 1.0))
    model.observe(1, 1.0)
    model.start(points)
    reference = ServiceTime.measured(points)
    assert [model.predict(rows) for rows in (1, 64, 256)] == [reference.predict(rows) for rows in (1, 64, 256)]
    assert model.expected(1) == pytest.approx(0.005, rel=0.05)
    assert (model.known, model.count) == (True, 9)


def test_a_speed_is_in_doubt_from_the_first_batch_that_is_far_off_until_it_is_decided() -> None:
    model = ServiceTime.measured([(1, 0.010), (64, 0.010)])
    seen = []
    for seconds in (0.010, 0.200, 0.010, 0.200, 0.200, 0.200, 0.200):
        model.observe(8, seconds)
        seen.append(model.doubted)
    assert seen == [False, True, False, True, True, False, False]
    assert model.expected(8) == pytest.approx(0.200, rel=0.1)
