"""When the broker in memory answers a fetch, worked out by hand."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from worker.fetching import agree
from worker.pacing import Terms
from worker.replay.broker import RECORD_BYTES, Arrival, Costs, MemoryClient
from worker.replay.clock import ReplayClock
from worker.replay.virtual_loop import VirtualLoop

COSTS = Costs(fetch_s=0.002, poll_s=0.0, record_s=0.0)
"""A record is there 1 ms after it came, an answer 2 ms after the poll before it at the earliest."""
Polls = list[tuple[int, dict[int, int]]]
"""(millisecond, partition -> records) of each poll that brought something."""


def record(at_ms: float, offset: int) -> Arrival:
    """Of 100 bytes."""
    return Arrival(at_ms / 1000, offset, 0, b"key", bytes(90 - RECORD_BYTES), (("name", b"val"),))


def polls(came_ms: Mapping[int, Sequence[float]], terms: Terms, timeout_ms: int = 500) -> Polls:
    """`came_ms`: partition -> when its records came. The same terms after each poll."""

    async def main() -> Polls:
        clock = ReplayClock(0.0)
        records = [[record(at, offset) for offset, at in enumerate(times)] for times in came_ms.values()]
        client = MemoryClient("t", records, clock, COSTS)
        clock.begin()
        found = []
        while not client.exhausted.is_set():
            polled = await client.getmany(timeout_ms=timeout_ms, max_records=100)
            agree(client, terms)
            await asyncio.sleep(0)
            if polled:
                found.append((round(clock.elapsed * 1000), {tp.partition: len(some) for tp, some in polled.items()}))
        return found

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_a_record_has_the_bytes_of_its_parts() -> None:
    assert record(0, 0).size == 100
    assert Arrival(0.0, 0, 0, None, None, ()).size == RECORD_BYTES


@pytest.mark.parametrize("timeout_ms", [500, 1], ids=["one poll", "many polls"])
@pytest.mark.parametrize(
    ("came_ms", "terms", "expected"),
    [
        # Nothing is held back: the second fetch finds what came until 2 ms, the third the rest.
        ({0: [0, 1, 2, 3, 4]}, Terms(1, 20), [(1, {0: 1}), (3, {0: 2}), (5, {0: 2})]),
        # The first fetch is answered by its first record. The second one has 300 bytes with the record of 3 ms.
        ({0: [0, 1, 2, 3, 4]}, Terms(250, 5), [(1, {0: 1}), (4, {0: 3}), (11, {0: 1})]),
        # The same bytes of two partitions; with a byte more it is the record of 4 ms.
        ({0: [0, 1, 3, 4], 1: [2]}, Terms(300, 5), [(1, {0: 1}), (4, {0: 2, 1: 1}), (11, {0: 1})]),
        ({0: [0, 1, 3, 4], 1: [2]}, Terms(301, 5), [(1, {0: 1}), (5, {0: 3, 1: 1})]),
        # A backlog is more than enough: it is not held back.
        ({0: [0, 1, 1, 1, 1]}, Terms(250, 5), [(1, {0: 1}), (3, {0: 4})]),
        # Too little: 2 ms of the fetch and 5 ms of the wait after the poll.
        ({0: [0, 6]}, Terms(250, 5), [(1, {0: 1}), (8, {0: 1})]),
        # Nothing within them: the next record ends the wait.
        ({0: [0, 8, 30]}, Terms(250, 5), [(1, {0: 1}), (9, {0: 1}), (31, {0: 1})]),
    ],
)
def test_an_answer_comes_with_enough_bytes_or_after_the_wait(
    came_ms: dict[int, list[float]], terms: Terms, expected: Polls, timeout_ms: int
) -> None:
    assert polls(came_ms, terms, timeout_ms) == expected
