"""The log on stderr."""

import io
import logging
import select
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

INTERVAL_S: Final = 10.0
KINDS: Final = 128
"""Kinds of lines whose last time is kept."""
PIECE: Final = 400
"""Characters that are written at once, of ten bytes at most (`\\U0001f600`): a pipe that can be written has room for
4,096."""


class RateLimit(logging.Filter):
    """Of the Kafka client's lines one of each kind in `INTERVAL_S`, with the number of those left out before it.

    While no broker answers it writes dozens a second. A kind is a text before its values are filled in.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("aiokafka"):
            return True
        kind, now = (record.name, str(record.msg)), self._clock()
        since, left_out = self._seen.get(kind, (now - INTERVAL_S, 0))
        if now - since < INTERVAL_S:
            self._seen[kind] = since, left_out + 1
            return False
        self._seen[kind] = now, 0
        self._seen.move_to_end(kind)
        if len(self._seen) > KINDS:
            self._seen.popitem(last=False)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more like it before)", ()
        return True


class NeverBlocking(logging.StreamHandler[TextIO]):
    """Lines for a pipe that nobody may read: they are left out and counted while it is full, since a write would stop
    the event loop until somebody does."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._left_out = 0
        self._cut = False
        """Whether the last line written has no end."""
        self._room: select.poll | None = None
        with suppress(io.UnsupportedOperation, ValueError):  # no file, or closed
            descriptor = stream.fileno()
            self._room = select.poll()
            self._room.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + self.terminator
            if self._left_out:
                text = self.terminator * self._cut + self.format(_left_out(self._left_out)) + self.terminator + text
            for start in range(0, len(text), PIECE):
                if self._room is not None and not self._room.poll(0):
                    self._left_out += 1
                    self._cut = self._cut or start > 0
                    return
                self.stream.write(text[start : start + PIECE])
                self.flush()
            self._left_out, self._cut = 0, False
        except Exception:
            self.handleError(record)


def _left_out(lines: int) -> logging.LogRecord:
    text = "lines left out, since nobody read them: %d"
    return logging.LogRecord("scorelane.logs", logging.WARNING, __file__, 0, text, (lines,), None)


def log_to_stderr(level: str, member: int | None = None) -> None:
    """One line an entry: time (UTC), level, process, its number under `--processes`, logger, message."""
    handler = NeverBlocking(sys.stderr)
    process = "pid=%(process)d" if member is None else f"pid=%(process)d member={member}"
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s {process} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # aiokafka reports each retry; the worker reports what they lead to.
    logging.getLogger("aiokafka").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    if level != "debug":
        handler.addFilter(RateLimit())
        # A coordinator not there yet, a group that rebalances and, ten times a second, a topic that is not there are
        # errors to it; what matters of them is raised.
        for name in ("consumer.group_coordinator", "cluster"):
            logging.getLogger(f"aiokafka.{name}").setLevel(logging.CRITICAL)
