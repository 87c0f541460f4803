"""One lane's primary engine and its stand-in: which answers a batch, and how long the primary is waited for. Pure.

- A batch goes to the primary only when it can be waited for until its predicted time is over and the stand-in can still
  answer in time after that. So a primary that hangs or turns slow costs no event its deadline.
- Probes of a half-open breaker are shadows: the stand-in answers the events, the primary scores a copy.
- A primary that is predicted to be too slow for every batch would never be seen again, hence never be found quick:
  after `refresh_s` without a batch it gets a shadow too.
"""

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from worker.breaker import Breaker, Cause, State, Transition
from worker.service_time import ServiceTime

KEPT_MOVES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    after_s: float = 0.002
    """Part of the budget that publishing takes."""
    ahead_rows: int = 256
    """Rows of the batch that the stand-in may have begun just before it is needed."""
    refresh_s: float = 0.25
    """Longest time that an admitted primary goes without a batch."""
    shadow_s: float = 0.5
    """How long a shadow is waited for before it counts as failed."""


class Decision(NamedTuple):
    answers: bool
    """True: the primary's scores are the answer. False: the stand-in's are."""
    ticket: int | None
    """Generation under which the primary runs the batch, to be reported with the result; None: it does not run it."""
    leave_at: float
    """When to stop waiting for the primary, which has failed then; the stand-in answers where it has not."""
    reason: str | None
    """Why the primary does not answer."""


class Guard:
    """Decides for one lane; the breaker may be shared by several. Times are seconds of one monotonic clock."""

    def __init__(
        self, breaker: Breaker, primary: ServiceTime, stand_in: ServiceTime, policy: GuardPolicy | None = None
    ) -> None:
        self.policy = policy or GuardPolicy()
        self.breaker = breaker
        self._primary = primary
        self._stand_in = stand_in
        self._ran_at = -inf
        self._opened_by: Cause | None = None
        self._moves: list[Transition] = []

    def moves(self) -> list[Transition]:
        """The breaker's moves since the last call, for the log, the metrics and the alarm topic."""
        moves, self._moves = self._moves, []
        return moves

    def needed(self, rows: int, wait_s: float = 0.0) -> float:
        """Budget that a row must have left for the primary to answer it in a batch of `rows`, the stand-in in reserve.

        `wait_s` is how long the stand-in is busy with other batches.
        """
        return self._primary.predict(rows) + self._reserve(rows, wait_s)

    def usable(self, now: float) -> bool:
        """Whether the breaker lets batches through, answering ones or shadows. Makes the move that is due by time."""
        self._moved(self.breaker.poll(now))
        return self.breaker.state is not State.OPEN

    def decide(
        self, rows: int, earliest: float, now: float, *, slot_free: bool = True, wait_s: float = 0.0
    ) -> Decision:
        """Who answers a batch of `rows` whose earliest deadline is `earliest`, closed now."""
        if not slot_free:
            return Decision(False, None, inf, "busy")
        self._moved(self.breaker.poll(now))
        ticket = self.breaker.admit(now)
        if ticket is None:
            return Decision(False, None, inf, f"breaker:{self._opened_by or self.breaker.state}")
        if self.breaker.state is State.HALF_OPEN:
            return self._shadow(ticket, now, f"breaker:{State.HALF_OPEN}")
        if now + self.needed(rows, wait_s) <= earliest:
            self._ran_at = now
            return Decision(True, ticket, earliest - self._reserve(rows, wait_s), None)
        if now - self._ran_at >= self.policy.refresh_s:
            return self._shadow(ticket, now, "budget")
        self.breaker.unused(ticket)
        return Decision(False, None, inf, "budget")

    def succeeded(self, ticket: int, rows: int, seconds: float, now: float) -> None:
        """The primary scored the batch in `seconds`."""
        self._primary.observe(rows, seconds)
        self._moved(self.breaker.succeeded(ticket, rows, seconds, now))

    def failed(self, ticket: int, now: float, *, left: tuple[int, float] | None = None) -> None:
        """The primary failed on the batch, or was left behind: `left` is (rows, seconds waited) then."""
        if left is not None:
            self._primary.observe(*left)
        self._moved(self.breaker.failed(ticket, now))

    def device_lost(self, now: float) -> None:
        self._moved(self.breaker.lost(now))

    def _reserve(self, rows: int, wait_s: float) -> float:
        """Time before the deadline at which the stand-in must be given the batch."""
        ahead = self._stand_in.predict(self.policy.ahead_rows)
        return wait_s + ahead + self._stand_in.predict(rows) + self.policy.after_s

    def _shadow(self, ticket: int, now: float, reason: str) -> Decision:
        self._ran_at = now
        return Decision(False, ticket, now + self.policy.shadow_s, reason)

    def _moved(self, move: Transition | None) -> None:
        if move is None:
            return
        if move.after is State.OPEN:
            self._opened_by = move.cause
        self._moves.append(move)
        del self._moves[:-KEPT_MOVES]
