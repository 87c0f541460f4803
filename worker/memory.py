"""The process's memory kept in memory: an evicted page costs a read from disk in the middle of a batch."""

import ctypes
import os
from typing import Final

from worker.errors import WorkerError

_MCL_CURRENT: Final = 1
_MCL_FUTURE: Final = 2
_MCL_ONFAULT: Final = 4
"""Pages are locked when they are touched, not read in at once: a GPU's driver reserves far more than there is."""


def lock_memory() -> None:
    """Lock every page that is and will be touched (mlockall(2)). Linux.

    Raises `WorkerError` with the remedy where the system refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise WorkerError(
            f"worker.lock_memory: mlockall: {reason}; allow it (ulimit -l unlimited, LimitMEMLOCK=infinity in systemd,"
            " the capability IPC_LOCK in a container), or set it to false"
        )
