"""The log on stderr."""

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 10.0
KINDS: Final = 128
"""Kinds of lines whose last time is kept."""


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


def log_to_stderr(level: str) -> None:
    """One line an entry: time (UTC), level, process, logger, message."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s pid=%(process)d %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
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
