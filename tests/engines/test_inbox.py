import threading

import pytest

from engines.inbox import Inbox
from tests.engines.test_runner import PATIENCE


def test_items_come_in_order_and_an_empty_inbox_says_so() -> None:
    inbox = Inbox[int]()
    for item in range(3):
        inbox.put(item)
    assert len(inbox) == 3 and inbox.wait(0.0)
    assert [inbox.pop() for _ in range(3)] == [0, 1, 2]
    assert not len(inbox)
    with pytest.raises(IndexError):
        inbox.pop()


def test_nothing_is_lost_between_many_threads_and_one_that_waits_for_ever() -> None:
    inbox, threads, each = Inbox[tuple[int, int]](), 4, 2000
    got: list[tuple[int, int]] = []

    def take() -> None:
        while len(got) < threads * each:
            if inbox.wait(None):
                got.append(inbox.pop())

    def put(number: int) -> None:
        for item in range(each):
            inbox.put((number, item))

    workers = [threading.Thread(target=take, daemon=True)]
    workers += [threading.Thread(target=put, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
        assert not worker.is_alive()
    assert sorted(got) == [(number, item) for number in range(threads) for item in range(each)]
    for number in range(threads):
        assert [item for who, item in got if who == number] == list(range(each))


def test_the_shortest_waits_end_however_many() -> None:
    """`SimpleQueue.get` hangs here within some hundred turns: an item resets it, then a timeout passes unnoticed."""
    inbox, turns = Inbox[int](), []

    def wait_briefly() -> None:
        for turn in range(20_000):
            inbox.put(turn)
            inbox.pop()
            assert not inbox.wait(1e-6)  # the bell of the item taken
            assert not inbox.wait(1e-6)
        turns.append(turn)

    thread = threading.Thread(target=wait_briefly, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert turns == [19_999]
