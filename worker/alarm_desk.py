"""Alarms from inside are checked and told; alarms from outside are let in and hold the primary engines back."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from schemas.alarm import Alarm, JsonAlarm
from worker.alarms import told
from worker.clock import Clock
from worker.config_quality import AlarmConfig
from worker.errors import PublishFailed
from worker.metrics import Metrics
from worker.publisher import Messages, Sender
from worker.topic import Topic
from worker.webhook import Authenticator, Outside, OutsideAlarms, parse

log = logging.getLogger("scorelane.alarms")

CHECK_INTERVAL_S: Final = 0.05
QUIET_INTERVAL_S: Final = 0.25
MOST_WAITING: Final = 256
"""Checks whose changes wait to be published; those of further ones are not."""


class AlarmDesk:
    def __init__(self, config: AlarmConfig, topics: Mapping[str, Topic], metrics: Metrics, clock: Clock) -> None:
        """Raises `ConfigError` when the webhook's token cannot be read."""
        self._config = config
        self._topics = topics
        self._metrics = metrics
        self._clock = clock
        self._outside = OutsideAlarms()
        self._authenticator = Authenticator(config.webhook_tokens())
        self._encode = msgspec.json.Encoder().encode

    async def run(self, publisher: Sender) -> None:
        """Check all topics' alarms and publish what changes, until cancelled.

        What cannot be published is logged and counted, and the checks go on meanwhile: scores do not depend on it.
        """
        changes: asyncio.Queue[list[Alarm]] = asyncio.Queue(MOST_WAITING)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish(publisher, changes), name="publish-alarms")
            while True:
                await asyncio.sleep(QUIET_INTERVAL_S if self._quiet() else CHECK_INTERVAL_S)
                changed = self.check()
                if not changed or not self._config.topic:
                    continue
                if changes.full():
                    self._unpublished(changed, f"{MOST_WAITING} changes wait for the brokers already")
                else:
                    changes.put_nowait(changed)

    async def _publish(self, publisher: Sender, changes: asyncio.Queue[list[Alarm]]) -> None:
        while True:
            changed = await changes.get()
            while not changes.empty():  # after a long wait all that has come meanwhile, or it would come ever later
                changed = changed + changes.get_nowait()
            messages = Messages()
            messages.add(
                [alarm.topic.encode() for alarm in changed],
                [self._encode(JsonAlarm(*msgspec.structs.astuple(alarm))) for alarm in changed],
            )
            try:
                delivery = await publisher.send(self._config.topic, 0, messages, int(self._clock.wall_ms()))
                await delivery.acknowledged()
            except PublishFailed as error:
                self._unpublished(changed, str(error))

    def _unpublished(self, changed: Sequence[Alarm], why: str) -> None:
        self._metrics.alarms_unpublished.inc(len(changed))
        which = ", ".join(f"{alarm.cause} of {alarm.topic} {alarm.state}" for alarm in changed)
        log.error("alarms not published to %s: %s: %s", self._config.topic, which, why)

    def _quiet(self) -> bool:
        """Nothing is in work and nothing is raised: checks come more slowly, so that an idle worker costs little."""
        return not any(
            topic.alarms.raised or any(lane.held[0] for lane in topic.lanes) for topic in self._topics.values()
        )

    def check(self) -> list[Alarm]:
        """What is raised and cleared now, logged and counted."""
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        self._release(self._outside.expire(now), now)
        changed: list[Alarm] = []
        for topic in self._topics.values():
            topic.alarms.queue_age(max((lane.queue_age for lane in topic.lanes), default=0.0))
            topic.alarms.device_lost(any(breakers.lost for breakers in topic.chain.breakers.values()))
            for alarm in topic.alarms.check(now, wall_ms):
                changed.append(alarm)
                self._metrics.alarms.labels(alarm.topic, alarm.cause).set(alarm.state == "raised")
                log.warning("alarm %s: topic %s: %s", alarm.state, alarm.topic, told(alarm, topic.alarms, now))
        return changed

    def receive(self, headers: Mapping[str, str], body: bytes) -> str:
        """Alertmanager's webhook; the answer: how many changed, and models of no topic. Raises `WebhookError`."""
        self._authenticator.check(headers)
        now = self._clock.monotonic()
        raised, cleared = self._outside.apply(parse(body), now)
        _tell("raised", raised)
        nobody: dict[str, None] = {}
        for outside in raised:
            concerned = self._concerned(outside)
            if not concerned:
                nobody[outside.model or ""] = None
            for topic in concerned:
                if topic.chain.primary_breakers is not None:
                    topic.chain.primary_breakers.hold(outside.name, now)
        for model in nobody:
            log.warning(
                "alarms with the model %.100s hold nothing back: no topic has it; topics and models are %s",
                model,
                ", ".join(f"{name} ({topic.chain.package.name})" for name, topic in self._topics.items()),
            )
        self._release(cleared, now)
        count = len(raised) + len(cleared)
        answer = f"{count} alarm{'' if count == 1 else 's'} changed"
        return answer + "".join(f"; no topic has the model {model}" for model in nobody)

    def _release(self, cleared: Sequence[Outside], now: float) -> None:
        _tell("cleared", cleared)
        for outside in cleared:
            for topic in self._concerned(outside):
                if topic.chain.primary_breakers is not None:
                    topic.chain.primary_breakers.release(outside.name, now)

    def _concerned(self, outside: Outside) -> Sequence[Topic]:
        """Label `model` names a topic or its model; without it all are meant."""
        return [
            topic for name, topic in self._topics.items() if outside.model in (None, name, topic.chain.package.name)
        ]


def _tell(what: str, outsides: Sequence[Outside]) -> None:
    """One line for like ones: a receiver may send a thousand at once."""
    for (alertname, model), times in Counter((outside.alertname, outside.model) for outside in outsides).items():
        more = f", {times} times" if times > 1 else ""
        log.warning("alarm from outside %s: %.100s (model %.100s)%s", what, alertname, model or "all", more)
