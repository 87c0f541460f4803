"""When a session is warm: its first batch shall take as long as the later ones."""

from collections.abc import Sequence
from typing import Final

import numpy as np

WARM_UP: Final = 3
"""Runs of every bucket and slot before a session is handed out; then, steady laps in a row over all of them."""
MOST_LAPS: Final = 30
"""On a machine that is never steady the session is handed out all the same."""
OUTLIER: Final = 2.0


def steady(laps: Sequence[Sequence[float]]) -> bool:
    """Whether no run of the last `WARM_UP` laps took `OUTLIER` times the quickest of its place; durations, any unit.

    On some H200 one of a session's first dozen batches took 0.3 ms longer than the others, waiting for the device.
    """
    if len(laps) < WARM_UP:
        return False
    taken = np.array(laps)
    return bool((taken[-WARM_UP:] < OUTLIER * taken.min(axis=0)).all())
