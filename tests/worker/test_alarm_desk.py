"""Alarms from inside are raised, cleared and published; alarms from outside hold the primary engines back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engines.package import Package
from schemas.alarm import Alarm
from tests.e2e.pipeline import encode, tips
from tests.worker.chunks import ManualClock, Record
from tests.worker.topics import Acknowledged, Outbox, loaded, records, running, tipping
from worker import alarm_desk as module
from worker.alarm_desk import AlarmDesk
from worker.config_quality import AlarmConfig
from worker.errors import PublishFailed
from worker.metrics import Metrics
from worker.partition import Partition
from worker.publisher import Messages
from worker.topic import Topic
from worker.webhook import WebhookError

BEARER = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tipping(tmp_path_factory.mktemp("models"), "ranker")


@dataclass
class Desk:
    desk: AlarmDesk
    topic: Topic
    clock: ManualClock
    metrics: Metrics

    def states(self) -> set[str]:
        return {str(state) for breakers in self.topic.chain.breakers.values() for _, state in breakers.states()}

    def changed(self, seconds: float) -> list[tuple[str, str]]:
        """What changes within `seconds` of checks."""
        found: list[Alarm] = []
        for _ in range(round(seconds / 0.05)):
            self.clock.now += 0.05
            found += self.desk.check()
        return [(alarm.state, alarm.cause) for alarm in found]


@asynccontextmanager
async def desk(
    package: Package, tmp_path: Path, lanes: int = 2, fallback: tuple[str, ...] = ("light",), **alarms: object
) -> AsyncIterator[Desk]:
    """One topic "t" of the model "ranker", lanes that stand still."""
    (tmp_path / "token").write_text("secret\n")
    config = AlarmConfig(webhook_token_file=str(tmp_path / "token"), **alarms)  # type: ignore[arg-type]
    clock, metrics = ManualClock(1000.0, 5e6), Metrics()
    sections: dict[str, object] = {"alarms": config}
    async with loaded(package, clock=clock, metrics=metrics, sections=sections, fallback=fallback) as topic:
        await topic.open_lanes(lanes, Outbox(), lambda: None)
        yield Desk(AlarmDesk(config, {"t": topic}, metrics, clock), topic, clock, metrics)


def payload(status: str = "firing", fingerprint: str = "f", **labels: str) -> bytes:
    alert = {"status": status, "labels": labels, "startsAt": "2026-08-01T10:00:00Z", "fingerprint": fingerprint}
    return json.dumps({"version": "4", "alerts": [alert]}).encode()


async def test_a_lost_device_raises_at_once(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path) as at:
        assert at.desk.check() == []
        at.topic.chain.breakers["ort"].lose(at.clock.now)
        (alarm,) = at.desk.check()
        assert (alarm.state, alarm.cause, alarm.topic) == ("raised", "device_lost", "t")
        assert alarm.time_ms == 5_000_000
        assert at.desk.check() == [], "told once"
        labels = {"topic": "t", "cause": "device_lost"}
        assert at.metrics.registry.get_sample_value("scorelane_alarm", labels) == 1


async def test_the_longest_wait_of_all_lanes_raises_and_clears(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path, queue_age_ms=200, raise_ms=100, clear_ms=500) as at:
        at.topic.take_in(Partition("t", 0, at.topic.lanes[1]), records(tips(1)))
        assert at.changed(0.2) == []
        assert at.changed(0.2) == [("raised", "queue_age")]
        assert at.metrics.registry.get_sample_value("scorelane_alarm", {"topic": "t", "cause": "queue_age"}) == 1
        at.topic.lanes[1].drop()
        assert at.changed(0.4) == []
        assert at.changed(0.2) == [("cleared", "queue_age")]
        assert at.metrics.registry.get_sample_value("scorelane_alarm", {"topic": "t", "cause": "queue_age"}) == 0


async def test_errors_of_the_primary_raise(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path, min_rows=10, raise_ms=100) as at:
        at.topic.alarms.answered(np.full(100, 0.001), 0, at.clock.now)
        at.topic.alarms.failed(6, at.clock.now)
        assert at.changed(0.2) == [("raised", "errors")]


async def test_a_topic_of_dead_letters_alone_raises_and_the_log_has_units(
    package: Package, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox()
    async with desk(package, tmp_path, lanes=0) as at, running(at.topic, outbox) as partition:
        at.topic.take_in(partition, [Record(offset, value=b"\xc1") for offset in range(100)])
        async with asyncio.timeout(10):
            await at.topic.lanes[0].drain()
        # Over the limit for 0.1 s raises; after 1 s the window is empty, which for 1 s clears.
        assert at.changed(0.1) == []
        assert at.changed(0.1) == [("raised", "dead_letters")]
        assert at.changed(1.6) == []
        assert at.changed(0.5) == [("cleared", "dead_letters")]
    assert len(outbox.sent["t.dead"]) == 100
    assert [record.message for record in caplog.records if record.name == "scorelane.alarms"] == [
        "alarm raised: topic t: dead_letters: 100 %, limit 5 %",
        "alarm cleared: topic t: dead_letters: no events, limit 5 %",
    ]


async def test_changes_are_published_in_json_under_the_topics_name(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path, topic="alarms") as at:
        outbox = Outbox()
        running = asyncio.create_task(at.desk.run(outbox))
        at.topic.chain.breakers["ort"].lose(at.clock.now)
        await outbox.until("alarms", 1)
        running.cancel()
        ((partition, key, value, headers),) = outbox.sent["alarms"]
        assert (partition, key, headers) == (0, b"t", {})
        assert value is not None
        assert json.loads(value) == {
            "state": "raised",
            "cause": "device_lost",
            "topic": "t",
            "observed": 1.0,
            "limit": 0.0,
            "time_ms": 5_000_000,
            "generation": 1,
        }


class Refusing(Outbox):
    """The first `refusals` sends fail, once `go` is set."""

    def __init__(self, refusals: int = 1) -> None:
        super().__init__()
        self.refusals = refusals
        self.go = asyncio.Event()

    async def send(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> Acknowledged:
        if self.refusals:
            await self.go.wait()
            self.refusals -= 1
            raise PublishFailed(f"topic {topic}, partition {partition}: no leader")
        return await super().send(topic, partition, messages, timestamp_ms)


async def test_alarms_that_cannot_be_published_are_counted_and_the_desk_goes_on(
    package: Package, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    monkeypatch.setattr(module, "QUIET_INTERVAL_S", 0.001)
    checked, changes = asyncio.Queue[None](), asyncio.Queue[list[Alarm]]()

    def check() -> list[Alarm]:
        checked.put_nowait(None)
        return [] if changes.empty() else changes.get_nowait()

    def alarm(cause: str) -> Alarm:
        return Alarm("raised", cause, "t", 1.0, 0.5, 5_000_000, 1)

    async with desk(package, tmp_path, topic="alarms") as at:
        monkeypatch.setattr(at.desk, "check", check)
        outbox = Refusing()
        running = asyncio.create_task(at.desk.run(outbox))
        for changed in ([alarm("a"), alarm("b")], [alarm("c")], [alarm("d")]):
            changes.put_nowait(changed)
            await checked.get()  # also while the first ones wait for the brokers
        while not changes.empty():
            await checked.get()
        outbox.go.set()
        await outbox.until("alarms", 1)
        changes.put_nowait([alarm("e")])
        await outbox.until("alarms", 2)
        assert not running.done()
        running.cancel()
    assert [json.loads(value or b"")["cause"] for _, _, value, _ in outbox.sent["alarms"]] == ["c", "e"]
    assert at.metrics.registry.get_sample_value("scorelane_alarms_unpublished_total") == 3
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "alarms not published to alarms: d of t raised: 1 changes wait for the brokers already",
        "alarms not published to alarms: a of t raised, b of t raised: topic alarms, partition 0: no leader",
    ]


class Slow(Outbox):
    """Every send waits for `go`; `sizes` has the messages of each."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.sizes: list[int] = []

    async def send(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> Acknowledged:
        self.sizes.append(len(messages))
        await self.go.wait()
        return await super().send(topic, partition, messages, timestamp_ms)


async def test_what_waits_while_the_brokers_are_slow_is_published_together(package: Package, tmp_path: Path) -> None:
    changes: asyncio.Queue[list[Alarm]] = asyncio.Queue()
    async with desk(package, tmp_path, topic="alarms") as at:
        outbox = Slow()
        publishing = asyncio.create_task(at.desk._publish(outbox, changes))
        for number, cause in enumerate("abcd"):
            changes.put_nowait([Alarm("raised", cause, "t", 1.0, 0.5, 5_000_000, 1)])
            if number == 0:
                await asyncio.sleep(0)
        outbox.go.set()
        await outbox.until("alarms", 4)
        publishing.cancel()
    assert outbox.sizes == [1, 3]
    assert [json.loads(value or b"")["cause"] for _, _, value, _ in outbox.sent["alarms"]] == list("abcd")


@pytest.mark.parametrize(("value", "output"), [(None, "t.dead"), (encode(tips(1)[0]), "t.scores")])
async def test_scores_and_dead_letters_that_cannot_be_published_end_the_worker(
    package: Package, value: bytes | None, output: str
) -> None:
    outbox = Refusing()
    outbox.go.set()
    async with loaded(package) as topic:
        refused = pytest.RaisesExc(PublishFailed, match=f"topic {output}, partition 0: no leader")
        with pytest.RaisesGroup(refused, flatten_subgroups=True):
            async with running(topic, outbox) as partition:
                topic.take_in(partition, [Record(7, value=value)])
                await asyncio.Event().wait()
        assert partition.ledger.next_offset == 7, "a restart reads it again"


async def test_a_webhook_holds_the_primary_in_every_lane_until_its_alarm_is_resolved(
    package: Package, tmp_path: Path
) -> None:
    async with desk(package, tmp_path) as at:
        assert at.desk.receive(BEARER, payload(alertname="GpuHot")) == "1 alarm changed"
        assert at.states() == {"open"}
        assert at.desk.receive(BEARER, payload(alertname="GpuHot")) == "0 alarms changed", "repeated"
        at.clock.now += 3600
        at.desk.check()
        assert at.states() == {"open"}
        assert at.desk.receive(BEARER, payload("resolved", alertname="GpuHot")) == "1 alarm changed"
        _, (primary, _), _ = await at.topic.chain.open_lane("later")
        assert primary.breaker is not None
        assert primary.breaker.refused(at.clock.now) is None, "lanes that open now are free"
        lane = next(iter(at.topic.chain.breakers["ort"]._breakers.values()))
        lane.poll(at.clock.now)
        assert lane.state == "half_open"


async def test_a_webhook_holds_the_primary_alone(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path, lanes=1, fallback=("light", "constant")) as at:
        at.desk.receive(BEARER, payload(alertname="GpuHot"))
        states = {engine: dict(breakers.states()) for engine, breakers in at.topic.chain.breakers.items()}
        assert states == {"ort": {"t-0": "open"}, "light": {"t-0": "closed"}}
        at.desk.receive(BEARER, payload("resolved", alertname="GpuHot"))
        _, (primary, _, _), _ = await at.topic.chain.open_lane("later")
        assert primary.breaker is not None and primary.breaker.refused(at.clock.now) is None


async def test_a_webhook_does_not_hold_an_engine_without_a_fallback(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path, fallback=()) as at:
        assert at.desk.receive(BEARER, payload(alertname="GpuHot")) == "1 alarm changed"
        assert at.desk.receive(BEARER, payload("resolved", alertname="GpuHot")) == "1 alarm changed"


@pytest.mark.parametrize(("model", "states"), [("t", {"open"}), ("ranker", {"open"}), ("other", {"closed"})])
async def test_a_webhook_may_name_a_topic_or_its_model(
    package: Package, tmp_path: Path, model: str, states: set[str]
) -> None:
    async with desk(package, tmp_path) as at:
        assert at.desk.receive(BEARER, payload(model=model)).startswith("1 alarm changed")
        assert at.states() == states


async def test_an_alarm_for_a_model_that_no_topic_has_is_told(
    package: Package, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk(package, tmp_path) as at:
        answer = at.desk.receive(BEARER, payload(alertname="GpuHot", model="other"))
        assert answer == "1 alarm changed; no topic has the model other"
        at.desk.receive(BEARER, payload(alertname="GpuHot", model="ranker", fingerprint="g"))
    told = [message for message in caplog.messages if "hold nothing back" in message]
    assert told == ["alarms with the model other hold nothing back: no topic has it; topics and models are t (ranker)"]


async def test_a_thousand_alerts_of_one_request_are_one_line(
    package: Package, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk(package, tmp_path) as at:
        alerts = [
            msgspec.json.decode(payload(fingerprint=str(i), alertname="Hot" if i else "Cold"))["alerts"][0]
            for i in range(9)
        ]
        for status in ("firing", "resolved"):
            at.desk.receive(
                BEARER,
                msgspec.json.encode({"version": "4", "alerts": [alert | {"status": status} for alert in alerts]}),
            )
    assert [message for message in caplog.messages if "from outside" in message] == [
        "alarm from outside raised: Cold (model all)",
        "alarm from outside raised: Hot (model all), 8 times",
        "alarm from outside cleared: Cold (model all)",
        "alarm from outside cleared: Hot (model all), 8 times",
    ]


async def test_a_webhook_before_the_lanes_are_open_holds_them_when_they_open(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path, lanes=0) as at:
        at.desk.receive(BEARER, payload())
        await at.topic.open_lanes(1, Outbox(), lambda: None)
        assert at.states() == {"open"}


async def test_an_alarm_whose_end_never_comes_ends_by_itself(package: Package, tmp_path: Path) -> None:
    async with desk(package, tmp_path) as at:
        at.desk.receive(BEARER, payload())
        at.clock.now += 6 * 3600
        at.desk.check()
        _, (primary, _), _ = await at.topic.chain.open_lane("later")
        assert primary.breaker is not None
        assert primary.breaker.refused(at.clock.now) is None


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
async def test_nobody_else_is_let_in(package: Package, tmp_path: Path, headers: dict[str, str]) -> None:
    async with desk(package, tmp_path) as at:
        with pytest.raises(WebhookError) as caught:
            at.desk.receive(headers, payload())
        assert caught.value.status == 401
        assert at.states() == {"closed"}
