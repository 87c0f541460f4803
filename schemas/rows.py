"""Decoded events as columns: what a decoder returns and what a batch is cut from."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.errors import InvalidEvent

Tensors = dict[str, NDArray[np.generic]]
"""Model input name -> array of shape [n, *row shape], C-contiguous, dtype and row shape as in the spec."""

EventKey = str | int


@dataclass(slots=True)
class Rows:
    """The scorable events of one decoded chunk, row i of every column being the same event.

    `positions[i]` is the index of row i in the values that were decoded, strictly increasing; values without a row
    are in `invalid` with their index. Absent times and deadlines are NaN.
    """

    tensors: Tensors
    keys: list[EventKey | None]
    """Key carried in the event's body, or None where the body has none."""
    positions: NDArray[np.int64]
    event_time_ms: NDArray[np.float64]
    """When the event happened, milliseconds since the epoch, by the event's own field."""
    deadline_ms: NDArray[np.float64]
    """The event's own deadline field, uninterpreted: absolute (since the epoch) or relative is for the topic to say."""
    invalid: list[tuple[int, InvalidEvent]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes held by the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
