"""Health means progress. Pure: the worker's facts and the time are arguments."""

from dataclasses import dataclass
from typing import Final

UNANSWERED_S: Final = 5.0
"""How long brokers may leave everything unanswered and still count as slow: a leader that goes down in order is
replaced in less, and one that crashes is worth telling of. Each answer begins it anew, however long it took."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the worker knows of itself; times in monotonic seconds, but for those that say how long."""

    warm: bool
    draining: bool
    assigned_since: float | None
    held: int
    last_poll: float
    last_settled: float
    unacknowledged_s: float = 0.0
    """For so long scores or dead letters have waited and the brokers have acknowledged none of them."""
    uncommitted_s: float = 0.0
    """For so long commits have been sent and none has succeeded."""
    joining: str = ""
    """What the first join may be waiting for."""


def not_live(facts: Facts, now: float, stall_s: float) -> list[str]:
    """Why the process should be restarted; empty when it should not."""
    if not facts.warm or facts.draining:
        return []
    if facts.held and now - max(facts.last_settled, facts.assigned_since or 0.0) > stall_s:
        return [f"{facts.held} records are held and none was settled for {now - facts.last_settled:.0f} s"]
    if not facts.held and now - facts.last_poll > stall_s:
        return [f"the last poll was {now - facts.last_poll:.0f} s ago"]
    if facts.uncommitted_s > stall_s:  # of a client that has lost the group for good nothing else can be seen
        return [f"no commit has succeeded for {facts.uncommitted_s:.0f} s"]
    return []


def not_ready(facts: Facts, now: float, stall_s: float, publish_timeout_s: float) -> list[str]:
    """Why the worker is not ready; empty when it is: warm, assigned, not draining, live, and answered by the brokers.

    Brokers that leave scores unanswered are no reason against being live: a new process would have to wait for them as
    well. The worker ends all the same after `publish_timeout_s`, so at most half of it is waited here.
    """
    reasons = not_live(facts, now, stall_s)
    if not facts.warm:
        reasons.append("warming up")
    if facts.draining:
        reasons.append("draining")
    elif facts.warm and facts.assigned_since is None:
        reasons.append(f"no assignment: {facts.joining or 'rebalancing'}")
    unanswered_s = min(UNANSWERED_S, publish_timeout_s / 2)
    if facts.unacknowledged_s > unanswered_s:
        reasons.append(f"the brokers have acknowledged no score or dead letter for {facts.unacknowledged_s:.0f} s")
    if unanswered_s < facts.uncommitted_s <= stall_s:
        reasons.append(f"no commit has succeeded for {facts.uncommitted_s:.0f} s")
    return reasons
