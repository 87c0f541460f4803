"""A Prometheus histogram that takes a whole batch of values at once."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class BatchHistogram(Collector):
    """Cumulative buckets per label set. `observe` costs microseconds a batch, whatever its size.

    The client library's own histogram takes one value a call, which is per event what must be per batch here.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._bounds = np.array(buckets, dtype=np.float64)
        self._names = [*(f"{bound:g}" for bound in buckets), "+Inf"]
        self._counts: dict[tuple[str, ...], NDArray[np.int64]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, values: NDArray[np.float64], *labels: str) -> None:
        """Add every value; `labels` in the order of the constructor's."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = np.zeros(len(self._bounds) + 1, dtype=np.int64)
            self._sums[labels] = 0.0
        counts += np.bincount(np.searchsorted(self._bounds, values), minlength=len(counts))
        self._sums[labels] += float(values.sum())

    def observe_one(self, value: float, *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            self.observe(np.array([value]), *labels)
            return
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, counts in self._counts.items():
            cumulative = np.cumsum(counts).tolist()
            family.add_metric(labels, list(zip(self._names, cumulative, strict=True)), self._sums[labels])
        yield family
