"""A topic that is deleted and created again under a worker: what is told, and where the group goes on."""

import pytest

from engines.package import Package
from tests.e2e.pipeline import tips
from tests.worker.member import A, B, member
from tests.worker.topics import records, tipping
from worker.errors import OffsetsWentBack


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tipping(tmp_path_factory.mktemp("models"))


async def test_the_member_says_what_happened_and_the_group_goes_on_at_the_new_beginning(package: Package) -> None:
    async with member(package) as at:
        await at.rebalance(A, B)
        at.client.polls.put_nowait({A: records(tips(5), 10), B: records(tips(3, 1), 70)})
        at.client.polls.put_nowait({A: records(tips(2), 0)})
        at.client.positions = {A: 2, B: 73}
        with pytest.raises(
            OffsetsWentBack, match=r"^topic t, partition 0: offset 0 came after offset 14: the topic was"
        ):
            await at.consumer.run()
        await at.finished()
        await at.consumer.abort()
    assert at.committed == {A: 0, B: 73}
