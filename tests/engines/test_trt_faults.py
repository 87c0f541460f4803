"""The TensorRT engine on `fake_gpu` when something is refused, runs out or breaks."""

import sys

import numpy as np
import pytest

from engines.base import run
from engines.build import shapes
from engines.errors import DeviceLost, LoadError, OutOfMemory, RunError
from engines.package import Package
from tests.engines.fake_gpu import Gpu, Op, Stream
from tests.engines.trt_support import direct, gpu, load, package, put_plan, trt
from tests.models import random_batch

__all__ = ["gpu", "package"]
"""Fixtures."""


def test_out_of_memory_gives_up_the_largest_bucket_and_its_batches_are_split(
    gpu: Gpu, package: Package, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(package, [8, 64, 1024])
    gpu.total = gpu.used + 40_000  # the arena of 64 fits, that of 1024 does not
    session = engine.open_session()
    assert [bucket.batch for bucket in session.buckets] == [8, 64]
    [said] = caplog.messages
    assert "no device memory for the 1 largest buckets, batches are cut up; use fewer lanes" in said
    assert engine.max_batch == 1024
    batch = random_batch(package.spec, 200)
    np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-6)


def test_out_of_memory_for_every_bucket_is_an_error_that_leaves_nothing_behind(gpu: Gpu, package: Package) -> None:
    engine = load(package, [8, 64])
    objects = gpu.objects
    gpu.total = gpu.used + 100
    with pytest.raises(OutOfMemory, match="no bucket of the plan fits") as error:
        engine.open_session()
    assert gpu.objects == objects, "held by the error that is being handled"
    del error
    gpu.total = 1 << 30
    assert run(engine.open_session(), random_batch(package.spec, 4)).shape == (4,)


@pytest.mark.parametrize("refusal", ["refuse_capture", "refuse_in_capture"])
def test_capture_refused_runs_eagerly(
    gpu: Gpu, package: Package, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At its end, by the driver, or at a copy within it, by pycuda."""
    load(package, [8]).open_session()
    assert not caplog.messages
    setattr(gpu, refusal, True)
    session = load(package, [8]).open_session()
    assert session.graphs == 0
    [said] = caplog.messages
    assert "some buckets run without a CUDA graph, which takes longer; build a plan with fewer" in said
    batch = random_batch(package.spec, 7)
    np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-6)


def test_a_capture_that_is_interrupted_is_ended(gpu: Gpu, package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Stream.put

    def interrupted(stream: Stream, op: Op) -> None:
        if stream.capture is not None:
            raise KeyboardInterrupt
        put(stream, op)

    monkeypatch.setattr(Stream, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(package, [8]).open_session()
    assert [stream.capture for stream in gpu.streams.values()] == [None] * len(gpu.streams)


def test_an_empty_graph_is_not_used(gpu: Gpu, package: Package) -> None:
    gpu.empty_graphs = True
    session = load(package, [8]).open_session()
    assert session.graphs == 0
    batch = random_batch(package.spec, 7)
    np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-6)


def test_the_number_of_graphs_is_capped_and_the_rest_runs_eagerly(gpu: Gpu, package: Package) -> None:
    session = load(package, [8, 32], max_graphs=3).open_session()
    assert session.graphs == 3
    for n in (8, 8, 32, 32):
        batch = random_batch(package.spec, n)
        np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-6)


def test_graphs_beyond_their_memory_are_not_captured(gpu: Gpu, package: Package) -> None:
    gpu.graph_bytes = 1000
    session = load(package, [1, 8, 32], max_graph_bytes=2500).open_session()
    assert session.graphs == 3, "that which crosses the bound is the last"
    for n in (1, 8, 32):
        batch = random_batch(package.spec, n)
        np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-6)


def test_no_graph_outlives_its_session_one_that_could_not_be_launched_included(gpu: Gpu, package: Package) -> None:
    engine = load(package, [8, 32])
    session = engine.open_session()
    assert gpu.graphs == 4
    session.close()
    assert gpu.graphs == 0
    gpu.refuse_launch = True
    with pytest.raises(OutOfMemory):
        engine.open_session()
    assert gpu.graphs == 0


def test_a_refused_enqueue_fails_its_batch_only(gpu: Gpu, package: Package) -> None:
    session = load(package, [8], graphs=False).open_session()
    batch = random_batch(package.spec, 5)
    session.submit(batch)
    gpu.refuse_enqueue = True
    with pytest.raises(RunError, match="execute_async_v3"):
        session.submit(batch)
    gpu.refuse_enqueue = False
    np.testing.assert_allclose(session.collect(), direct(package, batch), atol=1e-6)
    np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-6)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_sticky_error_is_device_lost_for_every_session_from_then_on(gpu: Gpu, package: Package, graphs: bool) -> None:
    engine = load(package, [8], graphs=graphs)
    first, second = engine.open_session(), engine.open_session()
    batch = random_batch(package.spec, 5)
    first.submit(batch)
    gpu.sticky = True
    with pytest.raises(DeviceLost):
        first.collect() if graphs else first.submit(batch)
    gpu.sticky = False  # what CUDA never does; the engine must not try
    for session in (first, second):
        with pytest.raises(DeviceLost):
            session.submit(batch)
    with pytest.raises(DeviceLost):
        engine.open_session()
    first.close()
    second.close()
    engine.close()


def test_load_and_unload_leave_nothing_on_the_device_failed_ones_included(gpu: Gpu, package: Package) -> None:
    good = put_plan(package, shapes.profiles(package.spec, [8, 32]))
    module, batch = trt(), random_batch(package.spec, 4)
    module.TrtEngine(package, good).close()
    objects, used = gpu.objects, gpu.used
    for cycle in range(12):
        if cycle % 3 == 0:
            gpu.refuse_enqueue = True
            engine = module.TrtEngine(package, good)
            with pytest.raises(LoadError, match="execute_async_v3"):
                engine.open_session()
            gpu.refuse_enqueue = False
        else:
            engine = module.TrtEngine(package, good)
            session = engine.open_session()
            run(session, batch)
            session.close()
        engine.close()
    assert (gpu.objects, gpu.used) == (objects, used)


def test_a_plan_that_tensorrt_refuses_names_build_capability_and_remedy(gpu: Gpu, package: Package) -> None:
    plan = put_plan(package, shapes.profiles(package.spec, [8]), plan=b"of another build")
    objects = gpu.objects
    with pytest.raises(LoadError, match=r"TensorRT 10\.6\.0 on compute capability 9\.0 refuses.*engine build"):
        trt().TrtEngine(package, plan)
    assert gpu.objects <= objects + 1  # the device's own probe stream


def test_a_runtime_that_does_not_start_is_an_error_with_the_remedy(
    gpu: Gpu, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = put_plan(package, shapes.profiles(package.spec, [8]))

    def refuse(log: object) -> None:
        raise TypeError("factory function returned nullptr")

    monkeypatch.setattr(sys.modules["tensorrt"], "Runtime", refuse)
    with pytest.raises(LoadError, match="runtime does not start: TensorRT logged no reason; check the GPU"):
        trt().TrtEngine(package, plan)
