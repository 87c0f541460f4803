"""When brokers shall answer a fetch: with the first record, or, while records flow, with those of some milliseconds.

An answer for every append keeps a broker and the worker busy with requests: 27,000 events a second, appended 200 times
a second, were fetched in 168 answers a second, and in 104 with 5 ms of gathering; as many requests bring the scores.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from worker.config import KafkaConfig

IDLE_FETCH_WAIT_MS: Final = 500
"""How long brokers hold back empty answers while nothing comes at all: 50 of them a second cost 4 % of a core. A record
ends the wait at once. As soon as one partition has records `kafka.fetch_max_wait_ms` counts again, for the sake of the
others."""
GATHERED_BYTES: Final = 256 << 10
"""An answer of so much is worth its request: it is not held back."""
BUDGET_PART: Final = 0.1
"""Most of a budget that may be spent on gathering."""


class Terms(NamedTuple):
    """A broker answers as soon as it has `min_bytes`, and after `wait_ms` with what it has."""

    min_bytes: int
    wait_ms: int


class Pacing:
    """The terms of each fetch, from the poll before it.

    Records that come together are followed by more of them: only the fetch after such a poll gathers. One that ends
    empty is followed by one that the next record ends. So a record is held back only if the poll before it was less
    than the linger ago, and in a sparse flow, where records come one by one, none is.
    """

    def __init__(self, kafka: KafkaConfig, budgets_ms: Iterable[float]) -> None:
        """`budgets_ms`: of the topics, one or more."""
        linger_ms = int(min(kafka.fetch_linger_ms, min(budgets_ms) * BUDGET_PART))
        self.usual = Terms(1, kafka.fetch_max_wait_ms)
        """Of all fetches but those that `after` is asked for."""
        self._idle = Terms(1, max(kafka.fetch_max_wait_ms, IDLE_FETCH_WAIT_MS))
        # Not more than one partition may bring: of a backlog in it alone every answer would be held back.
        gathered = min(GATHERED_BYTES, kafka.max_partition_fetch_bytes)
        self._flowing = Terms(gathered, linger_ms) if linger_ms else self.usual

    def after(self, records: int, *, partial: bool) -> Terms:
        """Of the fetch after a poll that brought so many; `partial`: full partitions were left out of it."""
        if records > 1:
            return self._flowing
        return self.usual if records or partial else self._idle
