"""Which fixed shapes a batch is run in: pure arithmetic on rows, lengths and measured costs.

A plan has a bucket per profile: so many rows at such a sequence length. A batch of n rows goes into the cheapest bucket
that holds it, padded; where sequences differ in length, rows are grouped by length so that short ones are not padded to
the longest, but only where the measured cost of the buckets says that two launches beat one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engines.base import Features

ALIGNMENT: Final = 256
"""Bytes to which TensorRT wants tensor addresses aligned."""

LAUNCH_US: Final = 10.0
"""What one more launch for the same batch costs the submitting thread: fill, launch, put the rows back in order."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The fixed shape of one optimisation profile."""

    profile: int
    """Index of the profile in the plan."""
    batch: int
    """Rows."""
    length: int
    """Length of the sequence axis; 0 where the model has none."""
    shapes: Mapping[str, tuple[int, ...]]
    """Input name -> full shape, batch axis first."""


@dataclass(frozen=True, slots=True)
class Run:
    """Part of a batch that one launch scores: `rows` of the batch, in that order, or the first `count` where None."""

    bucket: int
    count: int
    rows: NDArray[np.intp] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tensors of a bucket lie in one packed block of `input_bytes`, followed by [batch] float32 scores."""

    offsets: Mapping[str, int]
    input_bytes: int
    output_offset: int
    total_bytes: int


def layout(bucket: Bucket, dtypes: Mapping[str, np.dtype[np.generic]]) -> Layout:
    """Pack a bucket's tensors, each aligned for TensorRT, so that one copy moves them all."""
    offsets: dict[str, int] = {}
    at = 0
    for name, shape in bucket.shapes.items():
        offsets[name] = at
        at = aligned(at + int(np.prod(shape)) * dtypes[name].itemsize)
    return Layout(offsets, input_bytes=at, output_offset=at, total_bytes=aligned(at + bucket.batch * 4))


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Grid:
    """The buckets of one session and the cheapest way to run any batch with them.

    `costs` are microseconds per bucket as measured at warm-up. Immutable.
    """

    def __init__(
        self, buckets: Sequence[Bucket], costs: Sequence[float], sequences: Sequence[str], max_batch: int
    ) -> None:
        """`sequences` names the inputs whose axis 1 is the bucket's length. Some bucket has the full length."""
        self.buckets = tuple(buckets)
        self.lengths = sorted({bucket.length for bucket in buckets})
        self._sequences = tuple(sequences)
        costs = _monotone(self.buckets, costs)
        self._best = {length: self._table(length, costs, max_batch) for length in self.lengths}
        full = self._best[self.lengths[-1]][0]
        floor = self._best[self.lengths[0]][0]
        # Looking at the lengths costs time too, so it is done only where it can pay: the batch at the full length is
        # dearer than at the shortest by more than the look takes (about 1 ns a byte).
        width = sum(int(np.prod(max(b.shapes[name] for b in buckets)[1:])) * 4 for name in self._sequences)
        self._worth = [
            len(self.lengths) > 1 and full[n] - floor[n] > 5.0 + n * width * 1e-3 for n in range(max_batch + 1)
        ]
        first = self._best[self.lengths[-1]][1]
        self._whole = [
            Run(first[n], n, None) if n and self.buckets[first[n]].batch >= n else None for n in range(max_batch + 1)
        ]
        """The one run of n rows at the full length, None where it takes several."""

    def _table(self, length: int, costs: Sequence[float], max_batch: int) -> tuple[list[float], list[int]]:
        """For n = 0..max_batch rows of this length: the least total cost, and the bucket to launch first."""
        fitting = [(b.batch, costs[i], i) for i, b in enumerate(self.buckets) if b.length == length]
        best, first = [0.0], [-1]
        for n in range(1, max_batch + 1):
            # On equal cost the bucket with fewer padded rows.
            cost, _, index = min(
                (c + (LAUNCH_US + best[n - rows] if rows < n else 0.0), rows, i) for rows, c, i in fitting
            )
            best.append(cost)
            first.append(index)
        return best, first

    def _split(self, length: int, n: int) -> list[tuple[int, int]]:
        """(bucket, rows) of each launch for n rows of one length."""
        parts = []
        while n > 0:
            index = self._best[length][1][n]
            parts.append((index, min(n, self.buckets[index].batch)))
            n -= parts[-1][1]
        return parts

    def whole(self, n: int) -> Run | None:
        """The one run of a batch of n rows, or None where `runs` must look at its lengths or cut it."""
        return None if self._worth[n] else self._whole[n]

    def runs(self, features: Features, n: int) -> Sequence[Run]:
        """The launches for a batch of n rows. Every row is in exactly one; rows of several runs carry their indices."""
        if not self._worth[n]:
            whole = self._whole[n]
            if whole is not None:
                return (whole,)
            return self._numbered([(self.lengths[-1], np.arange(n, dtype=np.intp))])
        classes = self.classes(features, n)
        counts = np.bincount(classes, minlength=len(self.lengths))
        order = np.argsort(classes, kind="stable")
        groups, start = [], 0
        for length, count in self._group(counts.tolist()):
            groups.append((length, order[start : start + count]))
            start += count
        if len(groups) == 1:
            parts = self._split(groups[0][0], n)
            if len(parts) == 1:
                return (Run(parts[0][0], n, None),)
            groups = [(groups[0][0], np.arange(n, dtype=np.intp))]
        return self._numbered(groups)

    def classes(self, features: Features, n: int) -> NDArray[np.intp]:
        """[n] index into `lengths`: the shortest that holds the row, which ends at its last value that is not 0."""
        classes = np.zeros(n, np.intp)
        for name in self._sequences:
            tensor = features[name].reshape(n, features[name].shape[1], -1)
            for index in range(len(self.lengths) - 1, 0, -1):
                beyond = tensor[:, self.lengths[index - 1] : self.lengths[index]].any(axis=(1, 2))
                np.maximum(classes, beyond * index, out=classes)
        return classes

    def _group(self, counts: list[int]) -> list[tuple[int, int]]:
        """(length, rows) by ascending length: neighbouring length classes share a length where that costs less."""
        best: list[tuple[float, list[tuple[int, int]]]] = [(0.0, [])]
        for end in range(1, len(counts) + 1):
            options = []
            length = self.lengths[end - 1]
            for start in range(end):
                rows = sum(counts[start:end])
                cost, groups = best[start]
                if rows:
                    cost += self._best[length][0][rows] + (LAUNCH_US if groups else 0.0)
                    groups = [*groups, (length, rows)]
                options.append((cost, groups))
            best.append(min(options, key=lambda option: option[0]))
        return best[-1][1]

    def _numbered(self, groups: Sequence[tuple[int, NDArray[np.intp]]]) -> list[Run]:
        runs = []
        for length, rows in groups:
            start = 0
            for bucket, count in self._split(length, len(rows)):
                runs.append(Run(bucket, count, rows[start : start + count]))
                start += count
        return runs


def _monotone(buckets: Sequence[Bucket], costs: Sequence[float]) -> list[float]:
    """Costs without the noise that makes a bucket look cheaper than one that is smaller in rows and length."""
    return [
        max(c for other, c in zip(buckets, costs, strict=True) if other.batch <= b.batch and other.length <= b.length)
        for b in buckets
    ]
