"""A join that takes long says so: the client is silent while the group waits for others. Pure."""

from typing import Final

from worker.config import KafkaConfig

FIRST_S: Final = 3.0
"""A group that waits for nobody answers in less."""
EVERY_S: Final = 10.0


class Joining:
    """One join, from `began` on; monotonic seconds."""

    def __init__(self, kafka: KafkaConfig, began: float) -> None:
        self._kafka = kafka
        self._began = began
        self._due_at = began + FIRST_S

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
