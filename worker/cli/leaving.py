"""The end of the process, also where a thread of it has none."""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

STUCK_S: Final = 1.0


def leave(code: int) -> NoReturn:
    """End the process. A thread that is stuck in a call (an engine that hangs, a disk that does not answer) would keep
    the interpreter's own end waiting, or abort it where native code is on its way back: it is left out then. An
    interrupt ends the wait."""
    until = time.monotonic() + STUCK_S
    others = [
        thread
        for thread in threading.enumerate()
        # Of threads that others have begun nothing is known, and nobody waits for them.
        if thread is not threading.current_thread() and not isinstance(thread, threading._DummyThread)
    ]
    with suppress(KeyboardInterrupt):
        for thread in others:
            thread.join(max(until - time.monotonic(), 0.0))
    if any(thread.is_alive() for thread in others):
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or refused
                stream.flush()
        os._exit(code)
    sys.exit(code)
