"""A feature whose values are rows of a table: ids become rows, all events of a chunk at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.columns import Column
from schemas.errors import InvalidEvent
from schemas.refusal import invalid
from schemas.spec import FeatureSpec
from schemas.tables import Table


class TableColumn:
    """Fills the columns of one feature with a `table`."""

    def __init__(self, feature: FeatureSpec, index: Column, table: Table) -> None:
        """`index` fills in which row each event selects."""
        self._feature = feature
        self._index = index
        self._table = table

    def fill(self, values: Sequence[Any], target: NDArray[Any]) -> dict[int, InvalidEvent]:
        """As `Column.fill`: `target` is [n, width]."""
        picked = np.zeros((len(values), 1), np.int64)
        refused = self._index.fill(values, picked)
        index = picked[:, 0]
        rows = self._table.rows()
        outside = (index < 0) | (index >= len(rows))
        if outside.any():
            if self._feature.unknown == "refuse":
                for row in np.flatnonzero(outside).tolist():
                    problem = (
                        f"{values[row]!r} selects row {index[row]} of {self._feature.table}, which has {len(rows)}"
                    )
                    refused.setdefault(row, invalid("unknown_value", self._feature.field, problem))
            index[outside] = 0
        target[:] = rows[index]
        finite = np.isfinite(target)
        if not finite.all():
            for row in np.flatnonzero(~finite.all(axis=1)).tolist():
                problem = f"row {index[row]} of {self._feature.table} is not finite"
                refused.setdefault(row, invalid("not_finite", self._feature.field, problem))
        return refused
