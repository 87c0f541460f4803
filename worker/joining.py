"""A join that takes long says so: the client is silent while the group waits for others. Pure."""

from typing import Final

from worker.config import KafkaConfig
from worker.errors import ConsumerFailed

FIRST_S: Final = 3.0
"""A group that waits for nobody answers in less."""
EVERY_S: Final = 10.0


class Joining:
    """One join, from `began` on; monotonic seconds."""

    def __init__(self, kafka: KafkaConfig, began: float) -> None:
        self._kafka = kafka
        self._began = began
        self._due_at = began + FIRST_S

    def longest_s(self, stall_s: float) -> float:
        """How long it may take: for a dead member's session, then for the others' drains; `stall_s` at least."""
        return max(stall_s, (self._kafka.session_timeout_ms + self._kafka.rebalance_timeout_ms) / 1000)

    def failed(self, now: float) -> ConsumerFailed:
        """What it ends with after that."""
        return ConsumerFailed(
            f"the group {self._kafka.group_id} has not let this member in for {now - self._began:.0f} s; the process"
            " ends so that it is started again; see its members with `kafka-consumer-groups.sh --describe --members`"
        )

    def told(self, now: float) -> str:
        """How long it takes and what it may wait for."""
        return (
            f"joining group {self._kafka.group_id} for {now - self._began:.0f} s: after a crash the group waits up to"
            f" kafka.session_timeout_ms ({self._kafka.session_timeout_ms / 1000:g} s); see kafka.group_instance_id"
        )

    def due(self, now: float) -> str | None:
        """What is to be logged now: after `FIRST_S`, then every `EVERY_S`."""
        if now < self._due_at:
            return None
        self._due_at = now + EVERY_S
        return self.told(now)
