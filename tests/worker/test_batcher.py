import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.chunks import Maker
from worker.batch import Chunk
from worker.batcher import Batcher, GiveUp
from worker.classes import ClassPolicy
from worker.config_quality import ONE_CLASS
from worker.service_time import REFRESH_S, ServiceTime

INSTANT = (1e-9, 0.0)
"""Prior of a service that takes next to nothing."""


def batcher(max_batch: int = 4, scoring: tuple[float, float] = INSTANT) -> Batcher:
    return Batcher(max_batch, (ONE_CLASS,), ServiceTime(prior=scoring), ServiceTime(prior=INSTANT))


def offer(waiting: Batcher, chunk: Chunk) -> None:
    assert waiting.offer(chunk, 0, 0.0) == []


def xs(batch_features: dict[str, np.ndarray]) -> list[int]:
    return batch_features["x"][:, 0].astype(int).tolist()


def test_nothing_waiting_never_closes() -> None:
    empty = batcher()
    assert empty.closes(1e9, idle=True) is None
    assert empty.due_at == float("inf")
    assert not empty.waiting


def test_an_idle_device_takes_what_is_there() -> None:
    waiting = batcher()
    offer(waiting, Maker().chunk([100.0]))
    assert waiting.closes(0.0, idle=True) == "idle"


def test_a_busy_device_lets_the_batch_fill_until_it_is_full_or_due() -> None:
    waiting = batcher(max_batch=4)
    maker = Maker()
    offer(waiting, maker.chunk([100.0, 50.0]))
    assert waiting.closes(49.9, idle=False) is None
    assert waiting.closes(50.0, idle=False) == "due"
    offer(waiting, maker.chunk([100.0, 100.0]))
    assert waiting.closes(0.0, idle=False) == "full"


def test_due_is_the_earliest_deadline_less_the_predicted_service_time() -> None:
    scoring = ServiceTime(prior=(2.0, 1.0))
    waiting = Batcher(8, (ONE_CLASS,), scoring, ServiceTime(prior=INSTANT))
    offer(waiting, Maker().chunk([100.0, 60.0, 80.0]))
    expected = 60.0 - scoring.predict(3)
    assert abs(waiting.due_at - expected) < 1e-6
    assert waiting.closes(expected - 0.01, idle=False) is None
    assert waiting.closes(expected + 0.01, idle=False) == "due"


def test_rows_that_cannot_be_scored_in_time_are_given_up_where_late_rows_are() -> None:
    quickest = ServiceTime(prior=(2.0, 1.0))
    needed = quickest.predict(3)
    give_up = GiveUp("skip", quickest)
    waiting = Batcher(8, (ONE_CLASS,), quickest, ServiceTime(prior=INSTANT), give_up)
    maker = Maker()
    offer(waiting, maker.chunk([100.0]))
    waiting.take("idle", 40.0)
    offer(waiting, maker.chunk([40.0 + needed - 0.1, 40.0 + needed + 0.1, 90.0]))
    (late,) = waiting.expire(40.0)
    assert (late.closed_by, late.shed, late.shed_why, xs(late.features())) == ("shed", "skip", "late", [1])
    assert waiting.rows == 2
    assert waiting.expire(40.0) == [], "two rows take less than three"


def test_rows_are_not_given_up_on_a_prediction_that_nothing_has_tested_lately() -> None:
    quickest = ServiceTime(prior=(50.0, 0.0))
    waiting = Batcher(8, (ONE_CLASS,), quickest, ServiceTime(prior=INSTANT), GiveUp("skip", quickest))
    offer(waiting, Maker().chunk([10.0, 10.0]))
    assert waiting.expire(1.0) == []
    waiting.take("idle", 1.0)
    offer(waiting, Maker(partition=1).chunk([10.0]))
    assert len(waiting.expire(1.0 + REFRESH_S / 2)) == 1
    offer(waiting, Maker(partition=2).chunk([10.0]))
    assert waiting.expire(1.0 + REFRESH_S) == []


def test_rows_are_not_given_up_while_the_prediction_is_in_doubt() -> None:
    quickest = ServiceTime.measured([(1, 50.0), (8, 50.0)])
    waiting = Batcher(8, (ONE_CLASS,), quickest, ServiceTime(prior=INSTANT), GiveUp("skip", quickest))
    maker = Maker()
    offer(waiting, maker.chunk([10.0]))
    waiting.take("idle", 1.0)
    quickest.observe(1, 0.1)
    offer(waiting, maker.chunk([10.0]))
    assert waiting.expire(1.0) == []
    quickest.observe(1, 50.0)
    assert len(waiting.expire(1.0)) == 1


def test_the_most_urgent_rows_are_taken_first() -> None:
    waiting = batcher(max_batch=2)
    offer(waiting, Maker().chunk([1.0, 90.0, 70.0]))
    assert xs(waiting.take("full", 0.0).features()) == [0, 2]
    assert round(waiting.due_at, 3) == 90.0


def test_enough_to_keep_up_with_the_arrivals_need_not_wait_for_the_deadline() -> None:
    scoring = ServiceTime.measured([(1, 0.010), (100, 0.010)])
    waiting = Batcher(100, (ONE_CLASS,), scoring, ServiceTime(prior=INSTANT))
    maker = Maker()
    for second in range(10):
        # 100 rows a second, 10 ms a batch whatever its size: one row a batch keeps up.
        assert waiting.offer(maker.chunk([1e6] * 100), 0, float(second)) == []
        waiting.take("full", float(second))
    assert waiting.closes(9.0, idle=False) is None
    waiting.offer(maker.chunk([1e6] * 5), 0, 9.05)
    assert waiting.closes(9.05, idle=False) == "enough"


def test_a_rate_beyond_what_small_batches_serve_lets_the_batch_fill() -> None:
    scoring = ServiceTime.measured([(1, 0.010), (100, 0.010)])
    waiting = Batcher(100, (ONE_CLASS,), scoring, ServiceTime(prior=INSTANT))
    maker = Maker()
    for tick in range(1000):
        # 5,000 rows a second: 50 rows a batch of 10 ms, and more for the safety of the prediction.
        assert waiting.offer(maker.chunk([1e6] * 50), 0, tick * 0.01) == []
        waiting.take("full", tick * 0.01)
    waiting.offer(maker.chunk([1e6] * 30), 0, 10.0)
    assert waiting.closes(10.0, idle=False) is None
    waiting.offer(maker.chunk([1e6] * 60), 0, 10.0)
    assert waiting.closes(10.0, idle=False) == "enough"


def test_draining_closes_without_waiting() -> None:
    waiting = batcher()
    offer(waiting, Maker().chunk([100.0]))
    assert waiting.closes(0.0, idle=False, draining=True) == "drain"


def test_undecodable_records_alone_need_no_device() -> None:
    waiting = batcher()
    offer(waiting, Maker().chunk([], bad=[0, 1]))
    assert waiting.closes(0.0, idle=False) == "idle"
    batch = waiting.take("idle", 0.0)
    assert len(batch) == 0
    assert [s.chunk.rows.invalid[0][0] for s in batch.segments] == [0]
    assert not waiting.waiting


def test_a_batch_spans_chunks_and_leaves_the_rest() -> None:
    waiting = batcher(max_batch=4)
    maker = Maker()
    for size in (3, 3):
        offer(waiting, maker.chunk([9.0] * size))
    first = waiting.take("full", 0.0)
    assert xs(first.features()) == [0, 1, 2, 3]
    assert waiting.rows == 2
    assert xs(waiting.take("idle", 0.0).features()) == [4, 5]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=12), st.integers(1, 7))
def test_every_record_leaves_once_in_order_whatever_the_chunks(sizes: list[tuple[int, int]], max_batch: int) -> None:
    waiting = batcher(max_batch=max_batch)
    maker = Maker()
    sizes = [(good, bad) for good, bad in sizes if good + bad]
    for good, bad in sizes:
        offer(waiting, maker.chunk([1.0] * good, bad=range(bad)))
    taken: list[int] = []
    while waiting.waiting:
        batch = waiting.take("idle", 0.0)
        assert len(batch) <= max_batch
        if len(batch):
            taken += xs(batch.features())
        for segment in batch.segments:
            segment.settle()
    assert taken == sorted(taken)
    assert len(taken) == sum(good for good, _ in sizes)
    assert maker.ledger.unsettled == 0
    if sizes:
        assert maker.ledger.next_offset == maker.next_offset


def test_drop_forgets_everything() -> None:
    waiting = batcher()
    maker = Maker()
    offer(waiting, maker.chunk([1.0, 1.0]))
    assert waiting.drop() == 2
    assert not waiting.waiting
    assert waiting.due_at == float("inf")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 1), st.booleans())
def test_split_halves_keep_every_row_and_every_undecodable_record(sizes: list[int], bad: bool) -> None:
    waiting = batcher(max_batch=100)
    maker = Maker()
    for size in sizes:
        offer(waiting, maker.chunk([1.0] * size, bad=[0] if bad else []))
    batch = waiting.take("drain", 0.0)
    left, right = batch.split()
    assert len(left) == len(batch) // 2
    assert xs(left.features()) + xs(right.features()) == xs(batch.features())
    for segment in (*left.segments, *right.segments):
        segment.settle()
    assert maker.ledger.unsettled == 0


def test_above_the_bound_of_all_classes_the_lowest_is_shed() -> None:
    classes = (ClassPolicy(name="L1"), ClassPolicy(name="L2", shed="skip"))
    waiting = Batcher(8, classes, ServiceTime(prior=INSTANT), ServiceTime(prior=INSTANT), max_rows=6)
    maker = Maker()
    assert waiting.offer(maker.chunk([1.0] * 4), 1, 0.0) == []
    (shed,) = waiting.offer(maker.chunk([1.0] * 5), 0, 0.0)
    assert (len(shed), shed.closed_by, shed.shed, shed.shed_why) == (3, "shed", "skip", "overload")
    assert waiting.rows == 6
    assert sorted(xs(waiting.take("drain", 0.0).features())) == [0, 4, 5, 6, 7, 8]
