"""Bucket choice: hand-worked grids, and for any batch every row exactly once in a bucket that holds it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.buckets import ALIGNMENT, Bucket, Grid, Run, layout


def grid(costs: dict[tuple[int, int], float], max_batch: int, sequences: tuple[str, ...] = ("hist",)) -> Grid:
    """Buckets (batch, length) with their costs in microseconds."""
    buckets = [
        Bucket(profile, batch, length, {"hist": (batch, length)} if length else {"x": (batch, 3)})
        for profile, (batch, length) in enumerate(costs)
    ]
    return Grid(buckets, list(costs.values()), sequences if any(b.length for b in buckets) else (), max_batch)


def shape(grid: Grid, run: Run) -> tuple[int, int, int]:
    return grid.buckets[run.bucket].batch, grid.buckets[run.bucket].length, run.count


def history(lengths: list[int], full: int) -> dict[str, np.ndarray]:
    rows = np.zeros((len(lengths), full), np.int32)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = 7
    return {"hist": rows}


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [1]),
        (2, [8]),
        (8, [8]),
        (9, [32]),
        (32, [32]),
        (40, [8, 32]),  # above the largest bucket: 100 + 10 + 60
        (70, [8, 32, 32]),
    ],
)
def test_the_cheapest_buckets_that_hold_the_rows(n: int, expected: list[int]) -> None:
    small = grid({(1, 0): 50, (8, 0): 60, (32, 0): 100}, max_batch=70)
    runs = small.runs({"x": np.zeros((n, 3), np.float32)}, n)
    assert sorted(shape(small, run)[0] for run in runs) == expected
    assert sum(run.count for run in runs) == n
    assert len(runs) > 1 or runs[0].rows is None


def test_a_dear_bucket_is_passed_over_for_two_cheap_launches() -> None:
    steep = grid({(8, 0): 20, (64, 0): 200}, max_batch=64)
    assert [shape(steep, run) for run in steep.runs({"x": np.zeros((16, 3), np.float32)}, 16)] == [(8, 0, 8)] * 2
    flat = grid({(8, 0): 20, (64, 0): 45}, max_batch=64)  # 45 < 20 + 10 + 20
    assert [shape(flat, run) for run in flat.runs({"x": np.zeros((16, 3), np.float32)}, 16)] == [(64, 0, 16)]


def test_a_bucket_measured_cheaper_than_a_smaller_one_is_noise() -> None:
    noisy = grid({(8, 0): 50, (64, 0): 49}, max_batch=64)
    assert [shape(noisy, run) for run in noisy.runs({"x": np.zeros((5, 3), np.float32)}, 5)] == [(8, 0, 5)]


def test_rows_are_grouped_by_length_where_the_costs_say_so() -> None:
    long = grid({(1, 10): 15, (4, 10): 20, (1, 100): 60, (4, 100): 200, (1, 1000): 600, (4, 1000): 2000}, max_batch=4)
    batch = history([1000, 3, 100, 10], 1000)
    runs = long.runs(batch, 4)
    assert [(shape(long, run), run.rows is not None and run.rows.tolist()) for run in runs] == [
        ((4, 10, 2), [1, 3]),
        ((1, 100, 1), [2]),
        ((1, 1000, 1), [0]),
    ]


def test_rows_stay_together_where_a_launch_costs_more_than_padding() -> None:
    flat = grid({(4, 16): 50, (4, 50): 62}, max_batch=4)
    assert [shape(flat, run) for run in flat.runs(history([1, 2, 50, 3], 50), 4)] == [(4, 50, 4)]
    assert [shape(flat, run) for run in flat.runs(history([1, 2, 16, 3], 50), 4)] == [(4, 16, 4)]
    assert flat.runs(history([1, 2, 16, 3], 50), 4)[0].rows is None


def test_a_row_ends_at_its_last_value_and_an_empty_one_is_shortest() -> None:
    lengths = grid({(8, 2): 1, (8, 4): 1, (8, 6): 1}, max_batch=8)
    rows = np.array([[0] * 6, [1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 0, 0]], np.int32)
    assert lengths.classes({"hist": rows}, 5).tolist() == [0, 0, 1, 2, 1]


@given(
    lengths=st.lists(st.integers(0, 64), min_size=1, max_size=40),
    costs=st.lists(st.floats(1, 5000), min_size=9, max_size=9),
)
def test_every_row_is_run_once_in_a_bucket_that_holds_it(lengths: list[int], costs: list[float]) -> None:
    shapes = [(batch, length) for batch in (1, 8, 16) for length in (8, 16, 64)]
    any_grid = grid(dict(zip(shapes, costs, strict=True)), max_batch=40)
    n = len(lengths)
    seen: list[int] = []
    for run in any_grid.runs(history(lengths, 64), n):
        rows = list(range(n)) if run.rows is None else run.rows.tolist()
        batch, length, count = shape(any_grid, run)
        assert count == len(rows) <= batch
        assert all(lengths[row] <= length for row in rows)
        seen += rows
    assert sorted(seen) == list(range(n))


def test_tensors_are_packed_aligned_without_overlap() -> None:
    bucket = Bucket(0, 3, 0, {"dense": (3, 35), "ids": (3, 4), "wide": (3, 2)})
    dtypes = {"dense": np.dtype(np.float32), "ids": np.dtype(np.int32), "wide": np.dtype(np.int64)}
    packed = layout(bucket, dtypes)
    assert packed.offsets == {"dense": 0, "ids": 512, "wide": 768}  # 420, 48 and 48 bytes
    assert (packed.input_bytes, packed.output_offset, packed.total_bytes) == (1024, 1024, 1024 + ALIGNMENT)
