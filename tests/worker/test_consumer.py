"""One member of the group, with a client that does on demand what a broker does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaConnectionError

from engines.package import Package
from tests.e2e.pipeline import tips
from tests.worker.member import A, B, Member, Stalled, member
from tests.worker.topics import records, tipping
from worker import consumer as module
from worker.config import KafkaConfig
from worker.errors import BrokerUnreachable, ConsumerFailed
from worker.fetching import client_of
from worker.pacing import Terms


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tipping(tmp_path_factory.mktemp("models"))


@asynccontextmanager
async def polling(member: Member) -> AsyncIterator[None]:
    task = asyncio.create_task(member.consumer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None, task.exception()


async def test_what_was_taken_in_is_finished_and_committed_before_it_leaves(package: Package) -> None:
    async with member(package) as at:
        await at.consumer.start()
        await at.rebalance(A, B)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(5), 10), B: records(tips(3, 1), 70)})
            await at.outbox.scores(8)
            await at.consumer.leave()
        assert at.consumer.held == 0
        assert at.consumer.left == []
    assert at.committed == {A: 15, B: 73}
    assert at.client.log == ["subscribe t", "commit", "stop"]


async def test_partitions_go_round_the_lanes(package: Package) -> None:
    async with member(package) as at:
        tps = [TopicPartition("t", number) for number in range(5)]
        await at.rebalance(*reversed(tps))
        assert [at.lanes()[tp] for tp in tps] == ["t-0", "t-1", "t-0", "t-1", "t-0"]


async def test_records_polled_while_the_group_changes_are_left_to_the_next_poll(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A)
        first = records(tips(4), 0)
        async with polling(at):
            at.client.polls.put_nowait({A: first})
            changed = asyncio.create_task(at.rebalance(A))  # begins before the poll's records are taken in
            await changed
            at.client.polls.put_nowait({A: first})
            at.client.polls.put_nowait({A: records(tips(1, 1), 4)})
            scores = await at.outbox.scores(5)
            await at.consumer.leave()
    offsets = [score.offset for score in scores]
    assert sorted(set(offsets)) == [0, 1, 2, 3, 4]
    assert at.committed[A] == 5


async def test_records_of_partitions_that_are_not_ours_are_dropped(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A)
        async with polling(at):
            at.client.polls.put_nowait({B: records(tips(2)), A: records(tips(1), 7)})
            scores = await at.outbox.scores(1)
            await at.consumer.leave()
        assert [(score.partition, score.offset) for score in scores] == [(0, 7)]
        assert len(at.outbox.sent["t.scores"]) == 1
        assert at.committed == {A: 8}


async def test_what_cannot_be_finished_in_time_is_fenced_counted_and_not_committed(package: Package) -> None:
    async with member(package, outbox=Stalled(), drain_timeout_ms=100) as at:
        await at.rebalance(A)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(6), 3)})
            await at.outbox.until("t.scores", 6)
            partition = at.consumer._partitions[A]
            await at.rebalance(B)
        assert partition.is_fenced()
        assert at.metrics.registry.get_sample_value("scorelane_abandoned_rows_total", {"topic": "t"}) == 6
        assert at.committed == {A: 3}, "the position of the first record that is not settled"
        assert [lane.held for lane in at.topic.lanes] == [(0, 0), (0, 0)]
        assert list(at.consumer._partitions) == [B]


async def test_a_stop_tells_what_it_leaves_undone_and_a_rebalance_does_not(package: Package) -> None:
    async with member(package, outbox=Stalled(), drain_timeout_ms=100) as at:
        await at.rebalance(A)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(6), 3)})
            await at.outbox.until("t.scores", 6)
            at.client.commit_error = KafkaConnectionError("gone")
            await at.rebalance(B)
            assert at.consumer.left == []
            at.client.polls.put_nowait({B: records(tips(4, 1))})
            await at.outbox.until("t.scores", 10)
            await at.consumer.leave()
        commit, records_left = at.consumer.left
        assert commit.startswith("the last commit failed")
        assert records_left.startswith("4 records are left to the next owner")


async def test_an_event_after_an_hour_without_any_is_no_stall(package: Package) -> None:
    async with member(package, outbox=Stalled()) as at:
        await at.rebalance(A)
        async with polling(at):
            at.consumer.last_settled -= 3600
            at.client.polls.put_nowait({A: records(tips(1), 0)})
            await at.outbox.until("t.scores", 1)
            assert at.consumer.last_settled == at.consumer.last_poll
            at.client.polls.put_nowait({A: records(tips(1, 1), 1)})
            await at.outbox.until("t.scores", 2)
            assert at.consumer.last_settled < at.consumer.last_poll, "the first has waited since then"


async def test_what_a_member_holds_that_the_group_has_expelled_is_left_to_others_at_once(package: Package) -> None:
    """Stopped for longer than the session: others score all of it already, and nothing of it can be committed."""
    async with member(package, outbox=Stalled()) as at:  # a drain would last for drain_timeout_ms, 10 s
        await at.rebalance(A)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(6), 3)})
            await at.outbox.until("t.scores", 6)
            at.client.expel()
            async with asyncio.timeout(5):
                await at.rebalance(A)
        assert at.client.commits == []
        assert at.metrics.registry.get_sample_value("scorelane_abandoned_rows_total", {"topic": "t"}) == 6
        assert at.consumer.held == 0


async def test_the_clients_own_position_is_committed_where_it_is_past_the_last_record(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A, B)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(3), 10)})
            await at.outbox.scores(3)
            await at.finished()
            at.client.positions = {A: 14, B: 0}  # a transaction's marker has offset 13; B is empty
            await at.consumer.committer.commit()
        assert at.committed == {A: 14}


async def test_where_reading_begins_at_the_end_the_begin_is_committed(package: Package) -> None:
    """A member without a commit would begin at a new end after each rebalance, past what came in between."""
    async with member(package, auto_offset_reset="latest") as at:
        await at.rebalance(A, B)
        at.client.positions = {A: 7, B: 0}
        await at.consumer.committer.commit()
        assert at.committed == {A: 7, B: 0}


async def test_the_clients_position_does_not_count_while_what_it_delivered_is_not_entered(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(1), 2)})
            await at.outbox.scores(1)
            await at.finished()
            at.client.positions = {A: 9}  # as soon as the client has delivered 3..8
            at.client.polls.put_nowait({A: records(tips(6), 3)})
            at.client.delivered.clear()
            await at.client.delivered.wait()
            await at.rebalance(B)  # before they are taken in: they are dropped
        assert at.committed == {A: 3}


async def test_aborting_commits_what_is_settled_and_leaves_the_rest(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(2))})
            await at.outbox.scores(2)
            await at.finished()
            await at.consumer.abort()
        assert at.committed == {A: 2}
        assert at.client.log[-1] == "stop"


async def test_a_full_lane_is_not_polled_and_the_others_are(package: Package) -> None:
    # A lane is full from 4 records on; what A has is never acknowledged.
    async with member(package, outbox=Stalled(), inbox_rows=4) as at:
        await at.rebalance(A, B)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(4))})
            await at.outbox.until("t.scores", 4)
            at.client.polls.put_nowait({B: records(tips(4, 1))})
            await at.outbox.until("t.scores", 8)
            all_of_them, *later = at.client.asked
            assert all_of_them == ((), module.IDLE_POLL_MS)
            assert later and all(asked == ((B,), module.PARTIAL_POLL_MS) for asked in later)
            at.client.asked.clear()
            at.consumer.settled()  # a sign of room that is none
            for _ in range(20):
                await asyncio.sleep(0)
            assert at.client.asked == [], "both are full: nothing is polled"


async def test_brokers_hold_back_answers_for_longer_while_nothing_comes(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_POLL_MS", 1)
    async with member(package) as at:
        await at.rebalance(A)
        async with polling(at):
            await at.client._fetcher.patient.wait()
            monkeypatch.setattr(module, "IDLE_POLL_MS", 10_000)
            at.client.polls.put_nowait({A: records(tips(1))})
            await at.outbox.scores(1)
            assert at.client._fetcher.agreed[-1] == Terms(1, 20)


async def test_only_the_fetch_after_records_that_came_together_gathers(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A, B)
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(1))})
            await at.outbox.scores(1)
            at.client.polls.put_nowait({A: records(tips(1), 1), B: records(tips(1))})
            await at.outbox.scores(3)
            at.client.polls.put_nowait({B: records(tips(1), 1)})
            await at.outbox.scores(4)
    usual, gathering = Terms(1, 20), Terms(256 << 10, 5)
    # Each poll sets the terms of the fetch after it, and those of the fetches that follow an empty answer.
    assert at.client._fetcher.agreed == [usual, usual, gathering, usual, usual, usual]


async def test_lag_is_known_where_the_client_knows_the_end(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A, B)
        assert at.consumer.lag() == []
        async with polling(at):
            at.client.polls.put_nowait({A: records(tips(4), 5), B: records(tips(1))})
            await at.outbox.scores(5)
            await at.finished()
            assert at.consumer.lag() == [(("t", "0"), 3.0)]


async def test_sparse_partitions_come_to_share_a_lane(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A, B)
        assert len(set(at.lanes().values())) == 2
        at.consumer._rebind(5.0)
        assert all(partition.has_room for partition in at.consumer._partitions.values()), "the move is made here"
        assert len(set(at.lanes().values())) == 1


# What the client keeps to itself


async def test_a_dead_fetch_task_ends_the_worker(package: Package) -> None:
    async with member(package) as at:
        at.client._fetcher.error_future.set_exception(RuntimeError("boom"))
        at.client.polls.put_nowait({})
        with pytest.raises(ConsumerFailed, match=r"the client's fetch task ended: RuntimeError\('boom'\)"):
            await at.consumer.run()


async def test_a_failed_poll_ends_the_worker(package: Package) -> None:
    async with member(package) as at:
        at.client.polls.put_nowait(CorruptRecordException("bad checksum"))
        with pytest.raises(ConsumerFailed, match=r"bad checksum.*a restart reads them again"):
            await at.consumer.run()


async def test_a_rebalance_that_fails_ends_the_worker_though_the_client_swallows_it(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(TopicPartition("never subscribed", 0))
        at.client.polls.put_nowait({})
        with pytest.raises(ConsumerFailed, match="a rebalance failed: KeyError"):
            await at.consumer.run()


async def test_brokers_that_do_not_answer_are_named(package: Package) -> None:
    async with member(package) as at:
        at.client.start_error = KafkaConnectionError("nobody there")
        with pytest.raises(BrokerUnreachable, match=r"nobody there.*check kafka\.bootstrap_servers"):
            await at.consumer.start()


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), KafkaConnectionError("gone"), None])
async def test_leaving_ends_whatever_the_clients_own_stop_does(
    package: Package, monkeypatch: pytest.MonkeyPatch, raised: BaseException | None
) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.05)
    async with member(package) as at:
        at.client.stops = raised
        if raised is None:  # it hangs

            async def stop() -> None:
                await asyncio.Event().wait()

            at.client.stop = stop  # type: ignore[method-assign]
        async with asyncio.timeout(10):
            await at.consumer.leave()


def test_the_clients_settings_come_from_the_configuration() -> None:
    async def main() -> None:
        kafka = KafkaConfig(bootstrap_servers="localhost:1", group_id="g", session_timeout_ms=7000, check_crcs=False)
        client = client_of(kafka)
        assert (client._group_id, client._session_timeout_ms, client._check_crcs) == ("g", 7000, False)
        assert client._enable_auto_commit is False
        await client.stop()

    asyncio.run(main())
