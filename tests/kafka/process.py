"""Child processes that never outlive the test run, free ports, and waiting for a condition."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# The watcher reads the pipe that only the parent holds open: its end of file means that the parent is gone, however
# it died. `exec` keeps the pid, so signals sent to the child reach the program and not a shell.
_GUARD = 'exec 3<&0 </dev/null; (cat <&3 >/dev/null; kill -9 $$) 2>/dev/null & exec 3<&-; exec "$@"'


class Process:
    """A program in a process group of its own, its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | dict(env or {}),
                start_new_session=True,
            )
        self.pid = self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._child.poll()

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.tail()}") from None
        self._end_group()
        return code

    def kill(self) -> None:
        """SIGKILL to the whole group, also when the program itself is stopped or has ended. Idempotent."""
        self._end_group()
        self._child.wait()

    def _end_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        assert self._child.stdin is not None
        self._child.stdin.close()

    def tail(self, size: int = 4000) -> str:
        return self.log.read_bytes()[-size:].decode(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until[T](condition: Callable[[], T], what: str, timeout_s: float = 60.0, every_s: float = 0.02) -> T:
    """The first true value of `condition`; AssertionError naming `what` and the last value after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}; last: {value!r}")
        time.sleep(every_s)
    return value
