"""One feature of a chunk of events: the fields' values become columns of a tensor, all events at once.

A chunk in which something is refused is halved until the refused events stand alone, so that one bad event costs its
neighbours a few passes and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import inf, isfinite
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from schemas.errors import InvalidEvent
from schemas.refusal import invalid
from schemas.spec import FeatureSpec
from schemas.spec_check import bounds, category_text
from schemas.wire import blank, element_dtype

REFUSED: Final = (TypeError, ValueError, OverflowError, InvalidEvent)
_MAX_INSTANT_MS: Final = 8.64e15
"""The year 275760: within what calendars of common languages hold, and exact in a float64."""


def bucket(namespace: str, value: str, buckets: int) -> int:
    """Index in 1..buckets-1 of a hashed category: 1 + crc32(utf8(namespace=value)) mod (buckets - 1)."""
    return 1 + crc32(value.encode(), crc32(f"{namespace}=".encode())) % (buckets - 1)


class Indices(dict[Any, int]):
    """Value of a category -> index, each computed once. Missing values are the key None.

    Bounded: when full it starts anew, and long texts are not kept.
    """

    MAX_ENTRIES = 1 << 16
    MAX_CHARACTERS = 64

    def __init__(self, feature: FeatureSpec) -> None:
        super().__init__()
        self._feature = feature
        words = enumerate(feature.vocabulary or (), 1)
        self._vocabulary = {category_text(word): index for index, word in words}

    def __missing__(self, value: str | float | None) -> int:
        """Raises `InvalidEvent` for a value that is refused; that is not kept."""
        if value is None:
            default = self._feature.default
            index = 0 if default is None else self.index(default)  # type: ignore[arg-type]
        else:
            index = self.index(value)
        if len(str(value)) <= self.MAX_CHARACTERS:
            if len(self) >= self.MAX_ENTRIES:
                self.clear()
            self[value] = index
        return index

    def index(self, value: str | float) -> int:
        f = self._feature
        if isinstance(value, float) and not isfinite(value):
            raise invalid("not_finite", f.field, f"{value} is not a category")
        text = category_text(value)
        if f.buckets is not None:
            return bucket(f.namespace, text, f.buckets)
        index = self._vocabulary.get(text, 0)
        if index == 0 and f.unknown == "refuse":
            raise invalid("unknown_value", f.field, f"{text[:80]!r} is not in the vocabulary")
        return index


class Column:
    """Fills the columns of one feature."""

    def __init__(self, feature: FeatureSpec, *, integers: bool) -> None:
        """`integers`: the field holds integers, whatever the tensor's dtype is."""
        self._feature = feature
        self._size = feature.size
        self._rank = len(feature.shape)
        self._raw = element_dtype(feature) if feature.encoding == "raw" else None
        looked_up = feature.vocabulary is not None or feature.buckets is not None
        self._indices = Indices(feature) if looked_up else None
        self._wide = np.dtype(np.int64 if integers else np.float64)
        self._low, self._high = bounds(feature)
        if integers:  # JSON has larger ones
            self._low, self._high = max(self._low, -(2**63)), min(self._high, 2**63 - 1)

    @property
    def together(self) -> str | None:
        """What scalars must have in common to be filled in one pass; None for what is filled by itself."""
        if self._rank:
            return None
        if self._indices is not None:
            return "looked up"
        whole = all(isinstance(limit, int) for limit in self.limits)
        return None if self._wide == np.int64 and not whole else str(self._wide)

    @property
    def element(self) -> np.dtype[Any]:
        """In which values are read: wide enough that ranges are checked before anything is rounded."""
        return np.dtype(np.int32) if self._indices is not None else self._wide

    @property
    def lookup(self) -> Callable[[Any], int] | None:
        """Value -> index, in looked-up categories. Raises `InvalidEvent`."""
        return None if self._indices is None else self._indices.__getitem__

    @property
    def limits(self) -> tuple[int | float, int | float]:
        """Smallest and largest number that is not refused."""
        return self._low, self._high

    def fill(self, values: Sequence[Any], target: NDArray[Any]) -> dict[int, InvalidEvent]:
        """Write the field's values of n > 0 events into `target` [n, size]; returns what was refused by row.

        The rows of refused events are left with any content.
        """
        refused: dict[int, InvalidEvent] = {}
        try:
            self._write(values, target)
        except REFUSED:
            if self._feature.optional:
                missing = blank(self._feature)
                values = [missing if value is None else value for value in values]
            self._bisect(values, target, 0, refused)
        return refused

    def _bisect(
        self, values: Sequence[Any], target: NDArray[Any], first: int, refused: dict[int, InvalidEvent]
    ) -> None:
        try:
            self._write(values, target)
        except REFUSED:
            if len(values) == 1:
                refused[first] = self._explain(values[0])
                return
            half = len(values) // 2
            self._bisect(values[:half], target[:half], first, refused)
            self._bisect(values[half:], target[half:], first + half, refused)

    def _write(self, values: Sequence[Any], target: NDArray[Any]) -> None:
        if self._rank == 0:
            target[:, 0] = self._numbers(values, len(values))
        elif not self._feature.pad:
            flat = self._flat(values)
            target[:] = self._numbers(flat, len(values) * self._size).reshape(len(values), self._size)
        else:
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            if self._raw is not None:
                lengths, rest = np.divmod(lengths, self._raw.itemsize)
                if rest.any():
                    raise ValueError
            numbers = self._numbers(self._flat(values), int(lengths.sum()))
            if len(numbers) == target.size:
                target[:] = numbers.reshape(target.shape)
            else:
                target[:] = 0
                target[np.arange(self._size) < lengths[:, np.newaxis]] = numbers

    def _flat(self, values: Sequence[Any]) -> Any:
        """The elements of all values in one sequence: an array where the field is raw."""
        if self._raw is not None:
            return np.frombuffer(b"".join(values), self._raw)
        flat: Iterable[Any] = chain.from_iterable(values)
        for _ in range(self._rank - 1):
            flat = chain.from_iterable(flat)
        return flat

    def _numbers(self, flat: Any, count: int) -> NDArray[Any]:
        """The tensor's elements, checked. Raises one of `REFUSED` when any of them is refused."""
        if self._indices is not None:
            elements = flat.tolist() if self._raw is not None else flat
            return np.fromiter(map(self._indices.__getitem__, elements), np.int32, count)
        numbers: NDArray[Any] = flat if self._raw is not None else np.fromiter(flat, self._wide, count)
        # NaN is the smallest and the largest of an array that has one, and is in no range.
        if count and not (self._low <= np.minimum.reduce(numbers) and np.maximum.reduce(numbers) <= self._high):
            raise ValueError
        return numbers

    def _explain(self, value: Any) -> InvalidEvent:
        """What is wrong with a value that was refused."""
        field = self._feature.field
        if self._raw is not None and len(value) % self._raw.itemsize:
            return invalid("wrong_length", field, f"{len(value)} bytes are no whole number of {self._feature.dtype}")
        for position, element in enumerate([value] if self._rank == 0 else self._flat([value])):
            name = f"{field}[{position}]" if self._rank else field
            if self._indices is not None:
                try:
                    self._indices[element]
                except InvalidEvent as error:
                    return InvalidEvent(error.reason, name + error.detail.removeprefix(field))
            elif element != element or abs(element) == inf:
                return invalid("not_finite", name, f"{element} is not a finite number")
            elif not self._low <= element <= self._high:
                return invalid("out_of_range", name, f"{element} is outside [{self._low}, {self._high}]")
        raise AssertionError(f"{field}: refused without a cause")


def fill_instants(values: list[float | None], field: str, target: NDArray[np.float64]) -> dict[int, InvalidEvent]:
    """Write times in milliseconds into `target`, NaN where absent; returns what was refused by row."""
    absent = values.count(None)
    if absent == len(values):
        target.fill(np.nan)
        return {}
    target[:] = values  # None becomes NaN
    if np.count_nonzero(np.abs(target) <= _MAX_INSTANT_MS) + absent == len(values):
        return {}
    refused: dict[int, InvalidEvent] = {}
    for row, value in enumerate(values):
        if value is not None and not isfinite(value):
            refused[row] = invalid("not_finite", field, f"{value} is not a time")
        elif value is not None and abs(value) > _MAX_INSTANT_MS:
            refused[row] = invalid("out_of_range", field, f"{value} ms is outside ±{_MAX_INSTANT_MS:.0f}")
    return refused
