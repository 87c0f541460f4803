"""Commits: what has moved, one at a time, and none that could reach into another member's assignment."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaConnectionError

from tests.worker.chunks import ManualClock
from worker import committer as module
from worker.committer import Committer
from worker.metrics import Metrics

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Client:
    """A client whose commits fail as told, which a broker does not do on demand."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.errors: list[Exception] = []
        self.go = asyncio.Event()
        self.go.set()
        self.began, self.done = asyncio.Event(), asyncio.Event()
        self.under_way = 0
        self.most_under_way = 0

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.under_way += 1
        self.began.set()
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.go.wait()
        finally:
            self.under_way -= 1
        if self.errors:
            raise self.errors.pop(0)
        self.commits.append(dict(offsets))
        self.done.set()


class Fixture:
    def __init__(self) -> None:
        self.client, self.clock, self.metrics = Client(), ManualClock(10.0), Metrics()
        self.positions: dict[TopicPartition, int] = {A: 5, B: 7}
        self.committer = Committer(self.client, lambda: dict(self.positions), self.metrics, self.clock)

    def counted(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("scorelane_commits_total", {"outcome": outcome}) or 0.0


@pytest.fixture
async def at() -> Fixture:
    fixture = Fixture()
    fixture.committer.open()
    return fixture


async def test_only_what_has_moved_is_committed(at: Fixture) -> None:
    assert await at.committer.commit()
    assert await at.committer.commit()
    at.positions[B] = 9
    assert await at.committer.commit()
    assert at.client.commits == [{A: 5, B: 7}, {B: 9}]
    assert at.counted("ok") == 2


async def test_nothing_is_committed_before_an_assignment() -> None:
    fixture = Fixture()
    assert not await fixture.committer.commit()
    assert fixture.client.commits == []


async def test_a_new_assignment_commits_all_positions_again(at: Fixture) -> None:
    """The partition may have been elsewhere in between, where another offset was committed."""
    await at.committer.commit()
    await at.committer.close()
    at.committer.open()
    await at.committer.commit()
    assert at.client.commits == [{A: 5, B: 7}] * 2


async def test_closing_commits_once_more_and_then_no_more(at: Fixture) -> None:
    assert await at.committer.close()
    at.positions[A] = 6
    assert not await at.committer.commit()
    assert at.client.commits == [{A: 5, B: 7}]


async def test_closing_tells_a_last_commit_that_failed_and_none_where_there_is_none_to_make(at: Fixture) -> None:
    at.client.errors = [KafkaConnectionError("gone")]
    assert not await at.committer.close()
    assert await at.committer.close(), "it is closed already"


@pytest.mark.parametrize("error", [CommitFailedError("moved on"), IllegalStateError("not assigned")])
async def test_after_a_refused_commit_there_is_none_until_the_next_assignment(at: Fixture, error: Exception) -> None:
    at.client.errors = [error]
    assert not await at.committer.commit()
    assert not await at.committer.commit()
    assert (at.client.commits, at.counted("fenced")) == ([], 1)
    at.committer.open()
    assert await at.committer.commit()


async def test_a_failed_commit_is_tried_again_with_newer_offsets(at: Fixture) -> None:
    at.client.errors = [KafkaConnectionError("gone")]
    assert not await at.committer.commit()
    at.positions[A] = 6
    assert await at.committer.commit()
    assert at.client.commits == [{A: 6, B: 7}]
    assert (at.counted("failed"), at.counted("ok")) == (1, 1)


async def test_how_long_commits_have_failed_counts_from_the_first_one_until_one_succeeds(at: Fixture) -> None:
    assert at.committer.failing_s == 0.0
    at.client.errors = [KafkaConnectionError("gone")] * 2
    at.clock.now = 11.0
    await at.committer.commit()
    at.clock.now = 14.0
    await at.committer.commit()
    assert at.committer.failing_s == 3.0
    await at.committer.commit()
    assert at.committer.failing_s == 0.0
    at.clock.now = 20.0
    assert at.committer.failing_s == 0.0, "nothing is to be committed"


async def test_a_commit_under_way_counts_as_well(at: Fixture) -> None:
    at.client.go.clear()
    running = asyncio.create_task(at.committer.commit())
    await at.client.began.wait()
    at.clock.now = 12.0
    assert at.committer.failing_s == 2.0
    at.client.go.set()
    assert await running
    assert at.committer.failing_s == 0.0


@pytest.mark.parametrize("end", [Committer.close, Committer.forbid])
async def test_where_nothing_may_be_committed_nothing_fails(
    at: Fixture, end: Callable[[Committer], Awaitable[None]]
) -> None:
    at.client.errors = [KafkaConnectionError("gone")] * 2
    await at.committer.commit()
    await end(at.committer)
    at.clock.now = 20.0
    assert at.committer.failing_s == 0.0


async def test_a_refused_commit_is_an_answer(at: Fixture) -> None:
    at.client.errors = [CommitFailedError("moved on")]
    await at.committer.commit()
    at.clock.now = 20.0
    assert at.committer.failing_s == 0.0


async def test_a_commit_that_does_not_return_is_given_up(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 0.01)
    at.client.go.clear()
    assert not await at.committer.commit()
    assert (at.counted("failed"), at.client.under_way) == (1, 0)
    at.client.go.set()
    assert await at.committer.commit()


async def test_commits_are_one_at_a_time_and_closing_waits_for_the_one_under_way(at: Fixture) -> None:
    at.client.go.clear()
    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(at.committer.commit())
        closing = tasks.create_task(at.committer.close())
        await at.client.began.wait()
        assert not closing.done()
        at.positions[A] = 6
        at.client.go.set()
    assert ticking.result()
    assert at.client.commits == [{A: 5, B: 7}, {A: 6}]
    assert at.client.most_under_way == 1


async def test_the_tick_goes_on_after_a_failure(at: Fixture) -> None:
    at.client.errors = [KafkaConnectionError("gone")]
    running = asyncio.create_task(at.committer.run(0.0))
    async with asyncio.timeout(10):
        await at.client.done.wait()
    running.cancel()
    assert at.client.commits == [{A: 5, B: 7}]


async def test_a_commit_that_waits_behind_the_closing_one_is_not_sent(at: Fixture) -> None:
    """Without brokers each one takes its whole timeout, and all that time the group waits."""
    at.client.go.clear()
    first = asyncio.create_task(at.committer.commit())
    await at.client.began.wait()
    closing = asyncio.create_task(at.committer.close())
    await asyncio.sleep(0)
    behind = asyncio.create_task(at.committer.commit())
    await asyncio.sleep(0)
    at.client.go.set()
    await closing
    assert (await first, await behind) == (True, False)


async def test_a_commit_that_nobody_answers_is_told_in_words(
    at: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 0.01)
    at.client.go.clear()
    assert not await at.committer.commit()
    [record] = caplog.records
    assert record.getMessage() == (
        "commit of 2 partitions failed and is tried again: the group coordinator did not answer in 0.01 s"
    )
