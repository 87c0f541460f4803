"""Calls for which the permissions of files hold, even where the tests are run by root."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_OVERRIDES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: to read, write and search whatever the permissions say."""
_PR_CAPBSET_DROP = 24
_VERSION = 0x20080522


def unprivileged[T](call: Callable[[], T]) -> T:
    """What `call` returns on a thread without these capabilities, which are a thread's own. Its child processes have
    none of them either."""
    with ThreadPoolExecutor(1, initializer=_drop) as thread:
        return thread.submit(call).result()


def _drop() -> None:
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    held = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    for capability in _OVERRIDES:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to others than root, who have none
        for low in range(3):  # effective, permitted, inheritable
            held[low] &= ~(1 << capability)
    assert libc.capset(header, held) == 0
