"""Health means progress. Pure: the worker's facts and the time are arguments."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """What the worker knows of itself; times in monotonic seconds."""

    warm: bool
    draining: bool
    assigned_since: float | None
    held: int
    last_poll: float
    last_settled: float
    last_commit: float


def not_live(facts: Facts, now: float, stall_s: float) -> list[str]:
    """Why the process should be restarted; empty when it should not."""
    if not facts.warm or facts.draining:
        return []
    if facts.held and now - max(facts.last_settled, facts.assigned_since or 0.0) > stall_s:
        return [f"{facts.held} records are held and none was settled for {now - facts.last_settled:.0f} s"]
    if not facts.held and now - facts.last_poll > stall_s:
        return [f"the last poll was {now - facts.last_poll:.0f} s ago"]
    return []


def not_ready(facts: Facts, now: float, stall_s: float) -> list[str]:
    """Why the worker is not ready; empty when it is: warm, assigned, not draining, and live."""
    reasons = not_live(facts, now, stall_s)
    if not facts.warm:
        reasons.append("warming up")
    if facts.draining:
        reasons.append("draining")
    elif facts.warm and facts.assigned_since is None:
        reasons.append("no assignment: joining the group or rebalancing")
    if facts.held and now - facts.last_commit > stall_s:
        reasons.append(f"the last commit was {now - facts.last_commit:.0f} s ago")
    return reasons
