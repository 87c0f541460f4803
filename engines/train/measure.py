"""How good a model's probabilities are."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def auc(labels: Floats, scores: Floats) -> float:
    """Area under the ROC curve: the share of (positive, negative) pairs in the right order, ties counting half.

    NaN when there are only positives or only negatives.
    """
    positive = labels > 0.5
    positives = int(positive.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # The mean rank of each distinct score, counted from 1.
    ranks = np.cumsum(counts) - (counts - 1) / 2
    total = float(ranks[inverse][positive].sum())
    return (total - positives * (positives + 1) / 2) / (positives * negatives)


def log_loss(labels: Floats, scores: Floats) -> float:
    """Mean negative log-likelihood, in nats; probabilities are held within 1e-7 of 0 and 1."""
    p = np.clip(scores.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(labels > 0.5, np.log(p), np.log1p(-p))))
