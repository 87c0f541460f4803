import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.errors import OffsetsWentBack
from worker.ledger import Ledger


def test_nothing_entered_has_no_position() -> None:
    assert Ledger("topic t, partition 3").next_offset is None


def test_position_is_the_first_unsettled_record() -> None:
    ledger = Ledger("topic t, partition 3")
    entry = ledger.open([10, 11, 12, 13])
    assert ledger.next_offset == 10
    entry.settle(slice(2, 4))
    assert ledger.next_offset == 10, "records 10 and 11 are still in work"
    entry.settle(np.array([0]))
    assert ledger.next_offset == 11
    entry.settle(slice(1, 2))
    assert ledger.next_offset == 14
    assert ledger.unsettled == 0


def test_a_later_chunk_does_not_pass_an_earlier_one() -> None:
    ledger = Ledger("topic t, partition 3")
    first, second = ledger.open([0, 1]), ledger.open([5, 6])
    second.settle(slice(0, 2))
    assert ledger.next_offset == 0
    first.settle(slice(0, 2))
    assert ledger.next_offset == 7


def test_gaps_between_offsets_are_passed() -> None:
    ledger = Ledger("topic t, partition 3")
    entry = ledger.open([3, 8, 20])
    entry.settle(np.array([0, 1]))
    assert ledger.next_offset == 9


def test_settling_twice_is_refused() -> None:
    entry = Ledger("topic t, partition 3").open([0, 1])
    entry.settle(slice(0, 1))
    with pytest.raises(ValueError, match="twice"):
        entry.settle(slice(0, 2))


@pytest.mark.parametrize("offset", [0, 5])
def test_a_partition_that_begins_again_is_read_from_there_after_a_restart(offset: int) -> None:
    ledger = Ledger("topic t, partition 3")
    ledger.open([2, 3]).settle(slice(0, 2))
    entry = ledger.open([4, 5])
    with pytest.raises(OffsetsWentBack) as caught:
        ledger.open([offset, 9])
    assert str(caught.value) == (
        f"topic t, partition 3: offset {offset} came after offset 5: the topic was probably deleted and created again,"
        " or truncated. 2 records that were taken in before are left without a score, and what was not read by then is"
        f" gone with the old topic; nothing is lost from offset {offset} on, where the group goes on: start the worker"
        " again"
    )
    assert ledger.next_offset == offset
    entry.settle(slice(0, 2))
    ledger.reach(10)
    assert ledger.next_offset == offset, "a late score of the old topic's does not move it"


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_position_never_passes_an_unsettled_record(sizes: list[int], random: object) -> None:
    ledger = Ledger("topic t, partition 3")
    work, offset = [], 0
    for size in sizes:
        entry = ledger.open(list(range(offset, offset + size)))
        work += [(entry, position, offset + position) for position in range(size)]
        offset += size
    random.shuffle(work)  # type: ignore[attr-defined]
    unsettled = {at for _, _, at in work}
    for entry, position, at in work:
        entry.settle(np.array([position]))
        unsettled.remove(at)
        assert ledger.next_offset == min(unsettled, default=offset)
        assert ledger.unsettled == len(unsettled)


def test_where_the_client_is_counts_when_nothing_is_in_work() -> None:
    """Transaction markers have offsets and are no records; before the first record there is no offset of one."""
    ledger = Ledger("topic t, partition 3")
    ledger.reach(4)
    assert ledger.next_offset == 4
    entry = ledger.open([6, 7])
    ledger.reach(9)
    assert ledger.next_offset == 6, "records 6 and 7 are in work"
    entry.settle(slice(0, 2))
    assert ledger.next_offset == 9
    ledger.open([11])
    assert ledger.next_offset == 11


def test_where_the_client_was_does_not_take_the_position_back() -> None:
    ledger = Ledger("topic t, partition 3")
    ledger.reach(4)
    ledger.open([4, 5]).settle(slice(0, 2))
    assert ledger.next_offset == 6
