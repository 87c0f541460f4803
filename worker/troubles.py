"""What goes wrong with a topic's records, told in few lines however often it happens."""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from worker.folded import Folded, Since

log = logging.getLogger("scorelane.troubles")

DEAD_LETTERS_S: Final = 10.0
FAILURES_S: Final = 5.0
"""Shortest time between two lines of a topic's dead letters; and of one engine's failures of one cause."""

MOST_DETAIL: Final = 300
"""Characters of a detail: it quotes the record."""

RECORDS: Final = "records"
"""Count of those that the dead letters are a part of."""


class Dead(NamedTuple):
    """One dead letter."""

    partition: int
    offset: int
    reason: str
    detail: str


class Troubles:
    """Of one topic. Times are seconds of one monotonic clock."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._dead: Folded[None, Dead] = Folded(DEAD_LETTERS_S)
        self._failures: Folded[tuple[str, str], str] = Folded(FAILURES_S)

    def settled(self, records: int, dead: Mapping[str, int], example: Dead | None, now: float) -> None:
        """`records` are done with, of them `dead` letters by reason; `example` is one of these."""
        if example is not None:
            self._dead.add(None, now, dead, example)
        self._dead.beside(None, {RECORDS: records})

    def failed(self, engine: str, cause: str, rows: int, failure: str, now: float) -> None:
        """An engine did not score a batch; told at once when it is the first in a while."""
        self._failures.add((engine, cause), now, {"batches": 1, "rows": rows}, failure)
        self._tell_failures(now)

    def tell(self, now: float, *, ending: bool = False) -> None:
        """Log what has come together; to be called every second or so, and with `ending` at the end."""
        for _, since in self._dead.due(now, ending=ending):
            log.warning("topic %s: %s", self._topic, _dead_letters(since, now))
        self._tell_failures(now, ending)

    def _tell_failures(self, now: float, ending: bool = False) -> None:
        for (engine, cause), since in self._failures.due(now, ending=ending):
            batches, rows = since.counts["batches"], since.counts["rows"]
            many = f"{_count(batches, 'batch', 'batches')} of {_count(rows, 'row', 'rows')}{_within(since, now)}"
            shown = f"; the first: {since.example}" if batches > 1 else f": {since.example}"
            log.warning("topic %s: engine %s: %s: %s%s", self._topic, engine, cause, many, shown)


def _dead_letters(since: Since[Dead], now: float) -> str:
    records = since.counts.pop(RECORDS)
    partition, offset, reason, detail = since.example
    return (
        f"{since.counts.total()} of {_count(records, 'record', 'records')} became dead letters{_within(since, now)}:"
        f" {', '.join(f'{count} {why}' for why, count in since.counts.most_common())};"
        f" the first: partition {partition}, offset {offset}: {reason}: {' '.join(detail.split())[:MOST_DETAIL]}"
    )


def _within[E](since: Since[E], now: float) -> str:
    """Nothing for what came at one moment."""
    return f" in the last {max(now - since.began, 1.0):.0f} s" if now > since.began else ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
