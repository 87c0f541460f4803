"""The gates' statistics against hand-worked values and scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from engines.base import Features, Scores
from engines.build import parity
from engines.build.calibration import Rowset

EXACT = np.array([0.1, 0.2, 0.4, 0.8], np.float32)
scores = st.lists(st.integers(0, 20).map(lambda i: i / 20), min_size=2, max_size=60)


def test_equal_scores_differ_in_nothing() -> None:
    found = parity.compare(EXACT, EXACT.copy(), np.array([0, 0, 1, 1], np.float32))
    assert (found.max_abs, found.p99_abs, found.ks, found.calibration) == (0.0, 0.0, 0.0, 1.0)
    assert (found.auc, found.auc_reference, found.auc_drop) == (1.0, 1.0, 0.0)
    assert found.distinct_ratio == 1.0


def test_figures_worked_by_hand() -> None:
    candidate = np.array([0.1, 0.1, 0.5, 0.8], np.float32)
    found = parity.compare(EXACT, candidate, np.array([0, 1, 1, 0], np.float32))
    assert found.max_abs == pytest.approx(0.1)
    assert found.p99_rel == pytest.approx(np.quantile([0.0, 0.5, 0.25, 0.0], 0.99), rel=1e-6)
    assert (found.distinct, found.distinct_reference, found.distinct_ratio) == (3, 4, 0.75)
    # At 0.1 half of the candidates lie below or at it, a quarter of the reference.
    assert found.ks == 0.25
    assert found.calibration == pytest.approx(1.5 / 1.5)
    # Pairs (positive, negative): .2>.1, .2<.8, .4>.1, .4<.8 = 2 of 4; then .1=.1, .1<.8, .5>.1, .5<.8 = 1.5 of 4.
    assert (found.auc_reference, found.auc) == (0.5, 0.375)
    assert found.auc_drop == pytest.approx(0.25)


def test_rows_that_occur_many_times_move_the_distribution_by_one_step() -> None:
    exact = np.concatenate([np.full(300, 0.25), np.linspace(0.3, 0.9, 99)]).astype(np.float32)
    found = parity.compare(exact, exact + np.float32(1e-6), None)
    assert found.distinct_reference == 100
    assert found.ks == pytest.approx(0.01)  # stepped over one of 100 scores, not over 300 of 399 rows
    shifted = parity.compare(exact, np.concatenate([exact[:300], exact[300:] + np.float32(0.3)]), None)
    assert shifted.ks == pytest.approx(0.49, abs=0.011)  # half of the 99 others lie beyond where they were


def test_scores_that_are_not_finite_are_counted_and_left_out() -> None:
    candidate = np.array([np.nan, 0.2, np.inf, 0.8], np.float32)
    found = parity.compare(EXACT, candidate, None)
    assert (found.not_finite, found.max_abs, found.distinct, found.distinct_reference) == (2, 0.0, 2, 2)


def test_nothing_finite_at_all_is_no_crash() -> None:
    assert parity.compare(EXACT, np.full(4, np.nan, np.float32), None).not_finite == 4


def test_without_clicks_the_reference_itself_says_how_likely_they_are() -> None:
    found = parity.compare(EXACT, EXACT[::-1].copy(), None)
    pairs = [(p, q, float(a), float(b)) for p, a in enumerate(EXACT) for q, b in enumerate(EXACT)]
    won = sum(a * (1 - b) * (1.0 if p > q else 0.5 if p == q else 0.0) for p, q, a, b in pairs)
    total = sum(a * (1 - b) for _, _, a, b in pairs)
    assert found.auc_by == "expected"
    assert found.auc_reference == pytest.approx(won / total)
    assert found.auc == pytest.approx(1 - won / total)


@pytest.mark.parametrize(
    ("reference", "labels"),
    [([-1.0, 2.0], None), ([0.0, 0.0], None), ([-1.0, 2.0], [1.0, 1.0])],
    ids=["no probabilities", "no positive", "one class"],
)
def test_an_auc_that_cannot_be_measured_is_none(reference: list[float], labels: list[float] | None) -> None:
    exact = np.array(reference, np.float32)
    found = parity.compare(exact, exact, None if labels is None else np.array(labels, np.float32))
    assert (found.auc, found.auc_drop, found.auc_by) == (None, None, "none")


@given(scores, scores)
def test_ks_is_scipys(first: list[float], second: list[float]) -> None:
    expected = stats.ks_2samp(first, second, method="asymp").statistic
    assert parity.ks(np.array(first), np.array(second)) == pytest.approx(expected)


@given(scores, st.data())
def test_auc_is_the_mann_whitney_statistic(values: list[float], data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), dtype=np.float64)
    if 0 < labels.sum() < len(labels):
        found = np.array(values)
        u = stats.mannwhitneyu(found[labels == 1], found[labels == 0], method="asymptotic").statistic
        expected = u / (labels.sum() * (1 - labels).sum())
        assert parity.auc(found, labels, 1 - labels) == pytest.approx(expected)


class Recorder:
    """An engine that scores a row by its value and keeps the batch sizes it saw."""

    name, version, max_batch, depth = "recorder", "1", 64, 1

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.open = 0

    def open_session(self) -> "Recorder":
        self.open += 1
        return self

    def submit(self, features: Features) -> None:
        self.last = features["x"][:, 0].astype(np.float32)
        self.sizes.append(len(self.last))

    def collect(self) -> Scores:
        return self.last

    def close(self) -> None:
        self.open -= 1


@pytest.mark.parametrize(
    ("bucket", "smaller", "sizes"), [(8, 4, [8, 7, 5]), (2, 1, [2] * 10), (1, 0, [1] * 20), (32, 8, [20])]
)
def test_every_row_is_scored_in_batches_of_its_bucket_full_and_one_short(
    bucket: int, smaller: int, sizes: list[int]
) -> None:
    rows = Rowset({"x": np.arange(20, dtype=np.float32).reshape(20, 1)})
    engine = Recorder()
    assert parity.scored(engine.open_session, rows, bucket, smaller).tolist() == list(range(20))
    assert engine.sizes == sizes
    assert engine.open == 0
