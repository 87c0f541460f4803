"""Scalar features of one tensor that are filled in one pass, since a chunk of few events costs by the pass."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.columns import REFUSED, Column
from schemas.errors import InvalidEvent

FEWEST: Final = 3
"""Features that are worth a group: one pass over two costs as much as two."""

FieldValues = Mapping[str, Sequence[Any]]
"""Field -> its value in each event of a chunk."""


class Filler(Protocol):
    def fill(self, values: FieldValues, target: NDArray[Any]) -> dict[int, InvalidEvent]:
        """Write some columns of a tensor, `target` [n, all its columns]; returns what was refused by row."""


class ColumnFiller(Protocol):
    def fill(self, values: Sequence[Any], target: NDArray[Any]) -> dict[int, InvalidEvent]: ...


class Single(NamedTuple):
    """One feature by itself."""

    field: str
    left: int
    right: int
    column: ColumnFiller

    def fill(self, values: FieldValues, target: NDArray[Any]) -> dict[int, InvalidEvent]:
        return self.column.fill(values[self.field], target[:, self.left : self.right])


class Group:
    """Scalar features whose values become the same type and are checked in the same way (see `Column.together`).

    Where one value is refused, each feature is filled by itself, which finds out whose it is.
    """

    def __init__(self, members: Sequence[tuple[Single, Column]]) -> None:
        self._singles = [single for single, _ in members]
        places = [single.left for single in self._singles]
        side_by_side = places == list(range(places[0], places[0] + len(places)))
        self._places = slice(places[0], places[-1] + 1) if side_by_side else np.array(places)
        columns = [column for _, column in members]
        self._dtype = columns[0].element
        self._lookups = [column.lookup for column in columns if column.lookup is not None]
        self._low = np.array([column.limits[0] for column in columns], self._dtype)
        self._high = np.array([column.limits[1] for column in columns], self._dtype)

    def fill(self, values: FieldValues, target: NDArray[Any]) -> dict[int, InvalidEvent]:
        try:
            self._write([values[single.field] for single in self._singles], target)
            return {}
        except REFUSED:
            refused: dict[int, InvalidEvent] = {}
            for single in self._singles:
                refused |= single.fill(values, target)
            return refused

    def _write(self, lists: list[Sequence[Any]], target: NDArray[Any]) -> None:
        parts: Iterable[Iterable[Any]] = map(map, self._lookups, lists) if self._lookups else lists
        flat = np.fromiter(chain.from_iterable(parts), self._dtype, len(lists) * len(target))
        rows = flat.reshape(len(lists), len(target))
        if not self._lookups:
            # NaN is the smallest and the largest of an array that has one, and is in no range.
            lowest, highest = np.minimum.reduce(rows, axis=1), np.maximum.reduce(rows, axis=1)
            if not ((self._low <= lowest).all() and (highest <= self._high).all()):
                raise ValueError
        target[:, self._places] = rows.T


def grouped(members: Iterable[tuple[Single, Column]]) -> list[Filler]:
    """Each feature in one filler, those that can be together."""
    groups: dict[str, list[tuple[Single, Column]]] = {}
    fillers: list[Filler] = []
    for single, column in members:
        if column.together is None:
            fillers.append(single)
        else:
            groups.setdefault(column.together, []).append((single, column))
    for group in groups.values():
        fillers += [Group(group)] if len(group) >= FEWEST else [single for single, _ in group]
    return fillers
