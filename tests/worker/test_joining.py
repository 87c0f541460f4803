import asyncio

import pytest

from tests.worker.topics import whole
from worker.clock import SystemClock
from worker.config import KafkaConfig
from worker.errors import BrokerUnreachable, ConsumerFailed
from worker.joining import Joining
from worker.service import Service

KAFKA = KafkaConfig(bootstrap_servers="localhost:1", group_id="ads", session_timeout_ms=12_500)


def test_a_join_that_takes_long_is_told_after_3_s_and_every_10_s() -> None:
    joining = Joining(KAFKA, 100.0)
    told = [second for second in range(40) if joining.due(100.0 + second)]
    assert told == [3, 13, 23, 33]


def test_it_says_how_long_it_takes_and_what_it_may_wait_for() -> None:
    assert Joining(KAFKA, 100.0).told(104.4) == (
        "joining group ads for 4 s: after a crash the group waits up to kafka.session_timeout_ms (12.5 s); "
        "see kafka.group_instance_id"
    )


def test_it_may_take_a_dead_members_session_and_the_others_drains_and_as_long_as_a_stall() -> None:
    joining = Joining(KAFKA, 100.0)
    assert (joining.longest_s(60.0), joining.longest_s(10.0)) == (60.0, 42.5)  # 12.5 and 30 s


async def test_a_join_without_end_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting:
        left = False

        async def start(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.left = True

    monkeypatch.setattr(Joining, "longest_s", lambda self, stall_s: 0.001 if stall_s == 60.0 else stall_s)
    consumer = Waiting()
    with pytest.raises(ConsumerFailed, match="has not let this member in for 0 s; the process ends"):
        await Service(whole(), 0, SystemClock())._join(consumer)  # type: ignore[arg-type]
    assert consumer.left


async def test_what_ends_a_join_comes_as_it_is_and_the_telling_ends_with_it() -> None:
    class Refused:
        async def start(self) -> None:
            await asyncio.sleep(0)
            raise BrokerUnreachable("the user needs the ACL Read on the group ads")

    service = Service(whole(), 0, SystemClock())
    with pytest.raises(BrokerUnreachable, match="ACL Read"):
        await service._join(Refused())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "joining"] == []
