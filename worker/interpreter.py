"""The interpreter, set for a process whose answers are due within milliseconds."""

import gc
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005
"""A lane's thread asks for the interpreter after each native call; at the default of 5 ms it would wait that long
whenever the event loop is busy."""


def settle_collector() -> None:
    """What is loaded now stays: the collector need not look at it again, and comes seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
