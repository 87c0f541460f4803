"""How far one set of scores is from another of the same rows: errors, ties, distribution, calibration and ranking.

AUC alone hides what a lower precision breaks first (ties and calibration), so all of them are taken together.
"""

from collections.abc import Callable, Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import Features, Session
from engines.build.calibration import Rowset

Numbers = NDArray[np.float64]


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate against reference on the same rows."""

    rows: int
    not_finite: int
    """Rows whose candidate score is NaN or infinite; the other figures leave them out."""
    max_abs: float
    p99_abs: float
    p99_rel: float
    """99th percentile of |candidate - reference| / |reference|."""
    distinct: int
    distinct_reference: int
    ks: float
    """Largest distance between the two distribution functions (Kolmogorov-Smirnov), each score of the reference once:
    rows that occur many times move together, by an error that says nothing about the distribution."""
    calibration: float
    """Mean candidate score over mean reference score."""
    auc: float | None
    auc_reference: float | None
    """With clicks where rows have them, else expected under the reference's own probabilities; None when neither is
    possible (scores outside [0, 1], or one class only)."""
    auc_by: str
    """"clicks", "expected" or "none"."""

    @property
    def distinct_ratio(self) -> float:
        return self.distinct / self.distinct_reference if self.distinct_reference else 1.0

    @property
    def auc_drop(self) -> float | None:
        """Part of the reference's AUC that is lost; negative when the candidate is better."""
        if self.auc is None or not self.auc_reference:
            return None
        return 1.0 - self.auc / self.auc_reference


def compare(
    reference: NDArray[np.float32], candidate: NDArray[np.float32], labels: NDArray[np.float32] | None
) -> Parity:
    """Figures for scores [n] of the same n >= 1 rows in the same order."""
    finite = np.isfinite(candidate)
    exact, rounded = reference[finite].astype(np.float64), candidate[finite].astype(np.float64)
    error = np.abs(rounded - exact)
    relative = error / np.maximum(np.abs(exact), np.finfo(np.float32).tiny)
    different, first = np.unique(exact, return_index=True)
    by, positive, negative = _classes(exact, None if labels is None else labels[finite])
    return Parity(
        rows=len(reference),
        not_finite=int(len(reference) - finite.sum()),
        max_abs=float(error.max(initial=0.0)),
        p99_abs=_quantile(error),
        p99_rel=_quantile(relative),
        distinct=len(np.unique(candidate[finite])),
        distinct_reference=len(different),
        ks=ks(different, rounded[first]),
        calibration=float(rounded.mean() / exact.mean()) if len(exact) and exact.mean() else 1.0,
        auc=None if by == "none" else auc(rounded, positive, negative),
        auc_reference=None if by == "none" else auc(exact, positive, negative),
        auc_by=by,
    )


def ks(first: Numbers, second: Numbers) -> float:
    """Kolmogorov-Smirnov distance of two samples."""
    if not len(first) or not len(second):
        return 0.0
    points = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (first, second)]
    return float(np.max(np.abs(below[0] - below[1])))


def auc(scores: Numbers, positive: Numbers, negative: Numbers) -> float:
    """Probability that a positive outranks a negative, ties counting half.

    Row i counts `positive[i]` times as a positive and `negative[i]` times as a negative, so that clicks (1 and 0) and
    probabilities (p and 1 - p) both fit. Both must have a positive sum.
    """
    values, group = np.unique(scores, return_inverse=True)
    ups = np.bincount(group, weights=positive, minlength=len(values))
    downs = np.bincount(group, weights=negative, minlength=len(values))
    below = np.cumsum(downs) - downs
    return float((ups @ (below + 0.5 * downs)) / (ups.sum() * downs.sum()))


def cut(rows: Rowset, sequences: Collection[str], length: int) -> Rowset:
    """The same rows with at most so many elements in each of these tensors, the others padding."""
    features = dict(rows.features)
    for name in sequences:
        features[name] = features[name].copy()
        features[name][:, length:] = 0
    return Rowset(features, rows.labels, rows.users)


def scored(open_session: Callable[[], Session], rows: Rowset, bucket: int, smaller: int = 0) -> NDArray[np.float32]:
    """Scores of all rows by one session in batches that fall into this bucket.

    Full batches alternate with ones a row short (unless that is the next `smaller` bucket), so that padding is tested.
    """
    short = bucket - 1 if bucket - 1 > smaller else bucket
    session = open_session()
    try:
        parts, start, size = [], 0, bucket
        while start < len(rows):
            session.submit(_slice(rows.features, start, start + size))
            parts.append(session.collect())
            start, size = start + size, short if size == bucket else bucket
        return np.concatenate(parts)
    finally:
        session.close()


def _slice(features: Features, start: int, stop: int) -> Features:
    return {name: tensor[start:stop] for name, tensor in features.items()}


def _classes(reference: Numbers, labels: NDArray[np.float32] | None) -> tuple[str, Numbers, Numbers]:
    """(what the classes come from, weight of each row as a positive, as a negative)."""
    nothing = np.zeros(0)
    if labels is not None and 0 < labels.sum() < len(labels):
        return "clicks", labels.astype(np.float64), 1.0 - labels.astype(np.float64)
    if len(reference) and reference.min() >= 0.0 and reference.max() <= 1.0 and 0.0 < reference.mean() < 1.0:
        return "expected", reference, 1.0 - reference
    return "none", nothing, nothing


def _quantile(values: Numbers) -> float:
    return float(np.quantile(values, 0.99)) if len(values) else 0.0
