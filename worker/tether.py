"""Children that do not outlive this process, however it ends: even by SIGKILL, which no handler sees.

The child holds the read end of a pipe whose write end only this process has. When the pipe closes, a watcher beside
the child (two lines of sh, no threads and nothing run between fork and exec) sends the child a signal.
"""

import os
import signal
from collections.abc import Sequence

# fd 3 is the pipe. $$ is the process that becomes the child. The watcher keeps none of the child's streams open.
_SCRIPT = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -s "$0" $$) >/dev/null 2>&1 & exec 3<&-; exec "$@"'


class Tether:
    """One for each child:

    tether = Tether()
    process = subprocess.Popen(tether.command(argv), stdin=tether.stdin, start_new_session=True)
    tether.attached()
    ...
    process.wait()
    tether.release()
    """

    def __init__(self) -> None:
        self.stdin, self._write = os.pipe()
        """`stdin` is what the child must be started with."""
        self._open = [self.stdin, self._write]

    def command(self, argv: Sequence[str], orphaned: signal.Signals = signal.SIGKILL) -> list[str]:
        """What to start instead of `argv`: it becomes `argv` and gets the signal `orphaned` when this process ends."""
        return ["/bin/sh", "-c", _SCRIPT, orphaned.name.removeprefix("SIG"), *argv]

    def attached(self) -> None:
        """The child is started: this process no longer needs the read end."""
        self._close(self.stdin)

    def release(self) -> None:
        """The child has ended: its watcher may go. Idempotent. A child that still runs gets the signal."""
        self._close(self.stdin)
        self._close(self._write)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            os.close(fd)
