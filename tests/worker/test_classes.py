"""Classes of service: shares, bounds, and that no class starves."""

from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.classes import Classes, ClassPolicy, class_rank
from worker.edf import GRAIN_S


def classes(*weights: float, max_rows: int = 100_000, **options: float) -> Classes[str]:
    options.setdefault("aging_s", inf)
    named = [ClassPolicy(name=f"L{i + 1}", weight=w, **options) for i, w in enumerate(weights)]  # type: ignore[arg-type]
    return Classes(named, max_rows=max_rows)


def offer(
    queue: Classes[str], source: str, rank: int, rows: int, now: float = 0.0, budget: float = 0.05
) -> list[object]:
    return list(queue.offer(source, np.full(rows, now + budget), rank, 100.0, now))


def taken(queue: Classes[str], most: int, now: float = 0.0) -> dict[str, int]:
    return {pick.source: len(pick.rows) for pick in queue.take(most, now)}


def test_rows_are_shared_by_weight() -> None:
    queue = classes(8, 4, 2, 1)
    for rank in range(4):
        offer(queue, f"L{rank + 1}", rank, 1000)
    assert taken(queue, 150) == {"L1": 80, "L2": 40, "L3": 20, "L4": 10}


def test_shares_are_exact_over_many_small_batches() -> None:
    queue = classes(8, 4, 2, 1)
    for rank in range(4):
        offer(queue, f"L{rank + 1}", rank, 1000)
    total = dict.fromkeys(("L1", "L2", "L3", "L4"), 0)
    for _ in range(50):
        for name, rows in taken(queue, 3).items():
            total[name] += rows
    assert total == pytest.approx({"L1": 80, "L2": 40, "L3": 20, "L4": 10}, abs=1)


def test_what_a_class_leaves_goes_to_the_others_by_weight() -> None:
    queue = classes(8, 2, 1)
    offer(queue, "L1", 0, 10)
    offer(queue, "L2", 1, 1000)
    offer(queue, "L3", 2, 1000)
    assert taken(queue, 100) == {"L1": 10, "L2": 60, "L3": 30}


def test_a_class_that_was_empty_saved_up_nothing() -> None:
    queue = classes(1, 1)
    offer(queue, "L1", 0, 1000)
    taken(queue, 500)
    offer(queue, "L2", 1, 1000)
    assert taken(queue, 100) == {"L1": 50, "L2": 50}


def test_nor_does_one_that_comes_after_all_were_empty() -> None:
    queue = classes(1, 1)
    offer(queue, "L1", 0, 500)
    taken(queue, 500)
    offer(queue, "L1", 0, 500)
    offer(queue, "L2", 1, 500)
    assert taken(queue, 100) == {"L1": 50, "L2": 50}


def test_waiting_raises_the_weight_up_to_the_highest() -> None:
    queue = classes(8, 1, aging_s=0.1, timeout_s=10.0)
    offer(queue, "L2", 1, 1000, now=0.0)
    offer(queue, "L1", 0, 1000, now=0.3)
    assert taken(queue, 120, now=0.3) == {"L1": 80, "L2": 40}  # weight 1 * (1 + 0.3 / 0.1)
    offer(queue, "L1", 0, 1000, now=5.0)
    shares = taken(queue, 100, now=5.0)
    assert shares == {"L1": 50, "L2": 50}


def test_rows_of_one_chunk_go_to_their_classes() -> None:
    queue = classes(8, 4, 2, 1)
    ranks = np.array([0, 3, 0, 3, 1])
    assert queue.offer("chunk", np.full(5, 0.05), ranks, 100.0, 0.0) == []
    rows = {tuple(pick.rows.tolist()) for pick in queue.take(5, 0.0)}
    assert rows == {(0, 2), (4,), (1, 3)}
    assert (queue.rows, queue.earliest, queue.oldest) == (0, inf, inf)


def test_above_its_row_bound_a_class_sheds_its_own_last_rows() -> None:
    policies = [ClassPolicy(name="L1"), ClassPolicy(name="L2", max_rows=100, shed="dead_letter")]
    queue = Classes[str](policies, max_rows=1000)
    queue.offer("early", np.full(80, 1.0), 1, 100.0, 0.0)
    shed = queue.offer("later", np.full(50, 2.0), 1, 100.0, 0.0)
    assert [(s.pick.source, len(s.pick.rows), s.policy, s.why) for s in shed] == [("later", 30, "dead_letter", "full")]
    assert taken(queue, 1000) == {"early": 80, "later": 20}


def test_above_its_byte_bound_a_class_sheds_rows_until_it_holds() -> None:
    queue = classes(1, max_bytes=1000)
    queue.offer("small", np.full(50, 0.1), 0, 10.0, 0.0)
    shed = queue.offer("large", np.full(9, 0.05), 0, 100.0, 0.0)
    assert (shed[0].pick.source, shed[0].why) == ("small", "full")
    left = taken(queue, 1000)
    assert left.get("small", 0) * 10 + left["large"] * 100 <= 1000
    assert sum(left.values()) + sum(len(s.pick.rows) for s in shed) == 59


def test_overload_sheds_the_lowest_class_first() -> None:
    queue = classes(8, 4, 2, 1, max_rows=100)
    for rank in (3, 2, 1):
        offer(queue, f"L{rank + 1}", rank, 30)
    shed = offer(queue, "L1", 0, 50)
    assert [(s.pick.source, len(s.pick.rows), s.why) for s in shed] == [("L4", 30, "overload"), ("L3", 10, "overload")]  # type: ignore[attr-defined]
    assert taken(queue, 1000) == {"L1": 50, "L2": 30, "L3": 20}


def test_a_class_without_lower_ones_sheds_itself() -> None:
    queue = classes(8, 1, max_rows=100)
    offer(queue, "L1", 0, 100)
    assert [(s.pick.source, len(s.pick.rows)) for s in offer(queue, "L2", 1, 20)] == [("L2", 20)]  # type: ignore[attr-defined]


def test_quota_is_a_rate_with_one_second_of_burst() -> None:
    queue = classes(1, quota=100.0)
    assert sum(len(s.pick.rows) for s in offer(queue, "a", 0, 130)) == 30  # type: ignore[attr-defined]
    assert {s.why for s in offer(queue, "b", 0, 10)} == {"quota"}  # type: ignore[attr-defined]
    assert sum(len(s.pick.rows) for s in offer(queue, "c", 0, 60, now=0.5)) == 10  # type: ignore[attr-defined]


def test_rows_leave_at_their_class_timeout() -> None:
    queue = classes(1, 1, timeout_s=0.2)
    offer(queue, "a", 0, 5, now=0.0)
    offer(queue, "b", 1, 7, now=0.1)
    assert queue.expire(0.19) == []
    assert [(s.pick.source, len(s.pick.rows), s.why) for s in queue.expire(0.2)] == [("a", 5, "timeout")]
    assert queue.rows == 7


@dataclass
class Row:
    rank: int
    offered_at: float
    total_before: int
    """Rows that had left when it was offered."""
    same_before: int


mixes = st.lists(
    st.tuples(
        st.floats(0.001, 0.2),
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.floats(-0.1, 3.0)), max_size=5),
        st.integers(0, 80),
    ),
    min_size=1,
    max_size=30,
)
weights = st.lists(st.floats(0.1, 100.0), min_size=4, max_size=4)


@settings(max_examples=200)
@given(weights, st.floats(0.05, 1.0), st.sampled_from([0.01, 1.0, inf]), mixes)
def test_no_class_starves_and_every_admitted_row_leaves_once_within_its_bound(
    shares: list[float], timeout: float, aging: float, mix: list[tuple[float, list[tuple[int, int, float]], int]]
) -> None:
    policies = [ClassPolicy(name=f"L{i}", weight=w, timeout_s=timeout, aging_s=aging) for i, w in enumerate(shares)]
    queue = Classes[int](policies, max_rows=400)
    inside: dict[tuple[int, int], Row] = {}
    now, source, total, same = 0.0, 0, 0, [0] * 4
    for step in range(len(mix) + 200):
        elapsed, offers, most = mix[step] if step < len(mix) else (0.01, [], 50)
        now += elapsed
        for shed in queue.expire(now):
            for row in shed.pick.rows.tolist():
                left = inside.pop((shed.pick.source, row))
                # Out at the first look after its timeout, and none that was offered later is out before.
                assert left.offered_at + timeout <= now < left.offered_at + timeout + 0.21
        for rank, rows, budget in offers:
            source += 1
            inside |= {(source, row): Row(rank, now, total, same[rank]) for row in range(rows)}
            all_shed = queue.offer(source, np.full(rows, now + budget), rank, 1.0, now)
            gone = [inside.pop((shed.pick.source, row)) for shed in all_shed for row in shed.pick.rows.tolist()]
            highest = min((row.rank for row in gone), default=4)
            assert all(row.rank <= highest for row in inside.values())  # nothing of a lower class stays while one sheds
        before = [total, *same]
        picks = queue.take(most, now)
        for pick in picks:
            for row in pick.rows.tolist():
                left = inside.pop((pick.source, row))
                total += 1
                same[left.rank] += 1
        assert total - before[0] == min(most, total - before[0] + queue.rows)  # no row waits while there is room
        for row in inside.values():
            # While it waits its class gets its share of all rows, whatever the others send.
            served, own = total - row.total_before, same[row.rank] - row.same_before
            others = sum(
                max(shares) / shares[row.rank] * (own + 1) + 2 * max(shares) / min(shares) + 2 for _ in range(3)
            )
            assert served - own <= others
        assert queue.rows == len(inside) <= 400
    assert not inside


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(-1.0, 5.0)), min_size=2, max_size=60))
def test_a_row_is_never_overtaken_by_one_offered_after_its_timeout(offers: list[tuple[float, float]]) -> None:
    queue, now = Classes[int]([ClassPolicy(name="L1", timeout_s=0.3)], max_rows=100), 0.0
    offered = []
    for source, (elapsed, budget) in enumerate(offers):
        now += elapsed
        offered.append(now)
        queue.offer(source, np.array([now + budget]), 0, 1.0, now)
    out = [pick.source for _ in offers for pick in queue.take(1, now)]
    assert sorted(out) == list(range(len(offers)))
    for place, source in enumerate(out):
        assert all(offered[earlier] <= offered[source] + 0.3 + 2 * GRAIN_S for earlier in out[:place])


@pytest.mark.parametrize("options", [{"weight": 0}, {"timeout_s": inf}, {"max_rows": 0}, {"quota": -1}, {"aging_s": 0}])
def test_impossible_classes_name_their_key(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ClassPolicy(name="L1", **options)  # type: ignore[arg-type]


def test_no_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one class"):
        Classes[int]([], max_rows=100)


def test_class_by_name() -> None:
    policies = [ClassPolicy(name=f"L{number}") for number in range(1, 5)]
    assert [class_rank(name, policies, 2) for name in (b"L1", "L4", b"\xff", None)] == [0, 3, 2, 2]
