"""The TensorRT engine on a device that is not there (`fake_gpu`): the contract, buckets, slots, lanes.

What only a real device can show is in tests/gpu.
"""

import importlib
import sys
import weakref
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from engines.base import Engine, Features, Scores, run
from engines.build import shapes
from engines.errors import LoadError, RunError
from engines.inputs import Inputs
from engines.package import Package
from engines.plans import Profile
from engines.runner import serve
from schemas.rows import Tensors
from schemas.spec import ModelSpec, builtin
from tests.engines.contract import EngineContract
from tests.engines.fake_gpu import Gpu
from tests.engines.trt_support import direct, gpu, load, package, put_plan, trt
from tests.models import random_batch, tiny_package

__all__ = ["gpu", "package"]
"""Fixtures."""


@pytest.mark.usefixtures("gpu")
class TestContractWithGraphs(EngineContract):
    def load(self, package: Package, max_batch: int) -> Engine:
        engine: Engine = load(package, [1, 8, 64], max_batch=max_batch)
        return engine

    def reference(self, package: Package, batch: Tensors) -> Scores:
        return direct(package, batch)


class TestContractEagerly(TestContractWithGraphs):
    def load(self, package: Package, max_batch: int) -> Engine:
        engine: Engine = load(package, [1, 8, 64], max_batch=max_batch, graphs=False)
        return engine


class TestContractWithSequenceBuckets(TestContractWithGraphs):
    """DIN over sequences of up to 50, in buckets of 5, 16 and 50: rows regrouped by length, order restored."""

    @pytest.fixture
    def package(self, tmp_path: Path) -> Package:
        return tiny_package(tmp_path, "ad", "din")

    def load(self, package: Package, max_batch: int) -> Engine:
        engine: Engine = load(package, [4, 16, 64], [5, 16], max_batch=max_batch)
        return engine


def test_a_batch_is_one_graph_launch_in_the_smallest_bucket_that_holds_it(gpu: Gpu, package: Package) -> None:
    session = load(package, [1, 8, 32]).open_session()
    for n, bucket in ((1, "1"), (2, "8"), (8, "8"), (9, "32"), (32, "32")):
        session.submit(random_batch(package.spec, n))
        gpu.launched.clear()
        session.collect()
        assert gpu.launched == [bucket]
    assert session.graphs == 6  # three buckets, two slots each


def test_rows_beyond_n_do_not_reach_the_scores(gpu: Gpu, package: Package) -> None:
    session = load(package, [32]).open_session()
    full, short = random_batch(package.spec, 32, seed=1), random_batch(package.spec, 3, seed=2)
    for _ in range(3):  # both slots have held the full batch
        run(session, full)
    scores = run(session, short)
    assert scores.shape == (3,)
    np.testing.assert_allclose(scores, direct(package, short), atol=1e-6)


def test_the_next_batch_is_filled_while_the_last_one_runs(gpu: Gpu, package: Package) -> None:
    """The fake device reads a slot only when its event is waited for, so a shared slot would mix the two."""
    session = load(package, [8]).open_session()
    batches = [random_batch(package.spec, 8, seed=seed) for seed in range(6)]
    session.submit(batches[0])
    for before, after in pairwise(batches):
        session.submit(after)
        np.testing.assert_allclose(session.collect(), direct(package, before), atol=1e-6)


def test_nothing_is_allocated_after_the_session_is_open(gpu: Gpu, package: Package) -> None:
    session = load(package, [1, 8, 32]).open_session()
    objects, used = gpu.objects, gpu.used
    for n in (1, 5, 8, 31, 32):
        run(session, random_batch(package.spec, n))
        assert (gpu.objects, gpu.used) == (objects, used)


def test_warm_up_goes_through_submit_in_every_slot_and_ends_after_its_sample_is_gone(
    gpu: Gpu, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_type = importlib.import_module("engines.trt_session").TrtSession
    submit, make = session_type._submit, Inputs.sample
    samples: dict[int, weakref.ref[Any]] = {}
    seen = []

    def sample(self: Inputs, n: int) -> Tensors:
        made = make(self, n)
        samples[n] = weakref.ref(next(iter(made.values())))
        return made

    def submitted(self: Any, features: Features) -> None:
        seen.append((len(next(iter(features.values()))), samples[8]() is None))
        submit(self, features)

    monkeypatch.setattr(Inputs, "sample", sample)
    monkeypatch.setattr(session_type, "_submit", submitted)
    load(package, [1, 8]).open_session()
    assert seen == [(1, False)] * 2 + [(8, False)] * 2 + [(1, True)] * 2


@pytest.mark.usefixtures("gpu")
def test_every_bucket_is_run_three_times_in_every_slot_before_the_session_is_handed_out(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int] = []
    bucket_type = importlib.import_module("engines.trt_bucket").BucketContext
    session_type = importlib.import_module("engines.trt_session").TrtSession
    enqueue = bucket_type._enqueue

    def counted(self: Any, slot: Any) -> None:
        launched.append(id(slot))
        enqueue(self, slot)

    monkeypatch.setattr(bucket_type, "_enqueue", counted)
    monkeypatch.setattr(session_type, "_warm", lambda self, batches: None)
    session = load(package, [1, 8], graphs=False).open_session()
    slots = [id(slot) for pair in session._slots for slot in pair]
    assert [launched.count(slot) for slot in slots] == [1 + 3] * 4


def test_sequences_of_ten_thousand_have_short_buckets_beside_the_full_one(gpu: Gpu, tmp_path: Path) -> None:
    spec = ModelSpec.parse(builtin("ad").dumps().replace(b"[50]", b"[10000]"), "spec")
    package = tiny_package(tmp_path, spec, "mlp")
    session = load(package, [1, 4], [16, 50, 100]).open_session()
    batch = random_batch(spec, 4, seed=5)
    for row, length in enumerate((90, 10_000, 3, 40)):
        batch["hist"][row] = np.where(np.arange(10_000) < length, 1 + batch["hist"][row] % 4000, 0)
    session._grid = type(session._grid)(  # costs that make a split worth its launches
        session.buckets, [float(b.length * b.batch) for b in session.buckets], ["hist"], 1024
    )
    runs = session._grid.runs(batch, 4)
    assert [(session.buckets[run.bucket].length, run.rows.tolist()) for run in runs] == [
        (16, [2]),
        (50, [3]),
        (100, [0]),
        (10_000, [1]),
    ]
    session._whole = [None] * len(session._whole)
    np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-5)


def test_sequences_are_cut_to_the_shortest_bucket_that_holds_them_and_order_is_restored(
    gpu: Gpu, tmp_path: Path
) -> None:
    package = tiny_package(tmp_path, "ad", "din")
    session = load(package, [16, 32, 64], [5, 16]).open_session()
    batch = random_batch(package.spec, 64, seed=3)
    session._grid = type(session._grid)(  # costs that make a split worth its launches
        session.buckets, [float(b.length * b.batch) for b in session.buckets], ["hist"], 64
    )
    session.submit(batch)
    gpu.launched.clear()
    scores = session.collect()
    assert len(gpu.launched) >= 3
    np.testing.assert_allclose(scores, direct(package, batch), atol=1e-5)


def test_a_batch_split_over_one_bucket_several_times_takes_turns_in_its_slot(gpu: Gpu, package: Package) -> None:
    """Memory for the bucket of 8 only: 30 rows are four runs, twice over the same slot while another batch waits."""
    engine = load(package, [8, 32])
    engine._buckets = [bucket for bucket in engine._buckets if bucket.batch == 8]
    session = engine.open_session()
    first, second = random_batch(package.spec, 30, seed=1), random_batch(package.spec, 17, seed=2)
    session.submit(first)
    session.submit(second)
    np.testing.assert_allclose(session.collect(), direct(package, first), atol=1e-6)
    np.testing.assert_allclose(session.collect(), direct(package, second), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dense": [8, 34], "ids": [8, 4]}, "dense is"),
        ({"dense": [8, 35], "ids": [7, 4]}, "ids is"),
        ({"dense": [8, 35], "ids": [8, 4], "more": [8, 1]}, "profile 0 has"),
    ],
)
def test_profiles_that_do_not_fit_the_spec_are_refused(
    gpu: Gpu, package: Package, given: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        trt().TrtEngine(package, put_plan(package, [Profile(batch=8, shapes=given)]))


def test_buckets_that_no_batch_needs_are_not_opened(gpu: Gpu, package: Package) -> None:
    engine = load(package, [1, 8, 32, 256], max_batch=20)
    assert engine.max_batch == 20
    assert [bucket.batch for bucket in engine.open_session().buckets] == [1, 8, 32]


def test_a_batch_beyond_the_largest_bucket_takes_several_launches(gpu: Gpu, package: Package) -> None:
    engine = load(package, [1, 8, 32], max_batch=100)
    assert engine.max_batch == 100
    batch = random_batch(package.spec, 100)
    np.testing.assert_allclose(run(engine.open_session(), batch), direct(package, batch), atol=1e-6)


def test_the_plan_in_the_package_is_chosen_by_build_and_capability(gpu: Gpu, package: Package) -> None:
    put_plan(package, shapes.profiles(package.spec, [8]))
    assert trt().TrtEngine(package).plan.record.tensorrt == "10.6.0"
    module: ModuleType = sys.modules["tensorrt"]
    module.__version__ = "11.4.0"  # type: ignore[attr-defined]
    with pytest.raises(LoadError, match=r"no plan for TensorRT 11\.4\.0 on compute capability 9\.0"):
        trt().TrtEngine(package)


def test_lanes_on_shared_threads_are_scored_and_a_hung_one_is_left_behind(gpu: Gpu, package: Package) -> None:
    from tests.engines.test_runner import PATIENCE, Answers

    engine, answers = load(package, [8, 32], lane_threads=2), Answers()
    sessions = [engine.open_session() for _ in range(4)]
    lanes = [serve(session, name=str(index)) for index, session in enumerate(sessions)]
    batches = [random_batch(package.spec, 3 + 6 * index, seed=index) for index in range(4)]
    expected = [direct(package, batch) for batch in batches]
    gpu.hung.add(sessions[0]._stream)
    for index, lane in enumerate(lanes):
        lane.submit(batches[index], answers.done(index))
    for _ in range(3):
        label, scores, error = answers.next()
        assert isinstance(label, int) and label > 0 and scores is not None and error is None
        np.testing.assert_allclose(scores, expected[label], atol=1e-6)
    lanes[0].retire()
    assert isinstance(answers.next()[2], RunError)
    gpu.hung.clear()
    assert all(lane.close(PATIENCE) for lane in lanes)
    engine.close()
