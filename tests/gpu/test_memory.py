"""Memory on the GPU: nothing is taken after warm-up or kept after close; running out gives up the largest bucket."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

import engines
from engines import plans
from engines.base import run
from engines.errors import LoadError, OutOfMemory
from engines.package import Package
from engines.plans import PlanFile
from tests.engines.test_ort import direct
from tests.gpu.conftest import Build
from tests.models import random_batch

MIB = 1 << 20
LARGE = 4096
"""Rows of a bucket whose buffers take megabytes."""


@pytest.fixture
def model(build: Build) -> tuple[Package, PlanFile]:
    return build("tipping", "mlp", (1, 8, 32, 64))


def free_bytes() -> int:
    from engines import cuda

    with cuda.current(0) as device:
        return device.free_bytes()


def test_nothing_is_allocated_once_a_session_is_warm(model: tuple[Package, PlanFile]) -> None:
    package, _ = model
    engine = engines.load("trt", package, max_batch=64)
    session = engine.open_session()
    batches = [random_batch(package.spec, n) for n in (1, 7, 8, 31, 64)]
    before = free_bytes()
    for step in range(2000):
        run(session, batches[step % len(batches)])
    assert free_bytes() == before
    session.close()
    engine.close()


def test_two_hundred_loads_do_not_grow_host_or_device_memory(build: Build, tmp_path: Path) -> None:
    """Half of the cycles fail: a damaged plan, or a session that cannot be opened. A session's buffers are so large
    that one in fifty that stayed would show."""
    package, plan = build("tipping", "mlp", (1, 8, LARGE))
    batch = random_batch(package.spec, 5)
    damaged = plan.read()[: plan.record.plan_bytes // 2]
    (tmp_path / "plans").mkdir()
    record = msgspec.structs.replace(plan.record, plan_sha256=plans.sha256(damaged))
    broken = plans.write(tmp_path, record, damaged)
    process, buffers = psutil.Process(), 0

    def cycle(index: int) -> None:
        nonlocal buffers
        if index % 4 == 0:
            with pytest.raises(LoadError, match="refuses the plan"):
                engines.load("trt", package, plan=broken)
            return
        engine = engines.load("trt", package, max_batch=LARGE)
        if index % 4 == 1:
            engine._buckets[0] = bucket_of_another_shape()  # type: ignore[attr-defined]
            with pytest.raises(LoadError, match="no session"):
                engine.open_session()
        else:
            session = engine.open_session()
            buffers = session.device_bytes  # type: ignore[attr-defined]
            run(session, batch)
            session.close()
        engine.close()

    for index in range(40):  # caches of the driver, of TensorRT and of the allocators fill up first
        cycle(index)
    device, host = free_bytes(), process.memory_info().rss
    for index in range(200):
        cycle(index)
    grown = process.memory_info().rss - host
    taken = device - free_bytes()
    print(f"\n200 cycles: device {taken / MIB:.1f} MiB, host {grown / MIB:.1f} MiB; a session: {buffers / MIB:.1f} MiB")
    # Two of the driver's pages come and go by themselves.
    assert taken < 8 * MIB < 4 * buffers
    assert grown < 16 * MIB


def bucket_of_another_shape() -> object:
    from engines.buckets import Bucket

    return Bucket(0, 3, 0, {"dense": (3, 35), "ids": (3, 4)})  # the plan's profile 0 has one row


@pytest.fixture
def ballast() -> Iterator[list[object]]:
    """Device memory held by the test; dropped at its end."""
    from engines import cuda

    held: list[object] = []
    yield held
    with cuda.current(0):
        held.clear()


def test_out_of_memory_gives_up_the_largest_bucket_and_goes_on(build: Build, ballast: list[object]) -> None:
    from engines import cuda

    huge = 1 << 16
    package, _ = build("tipping", "mlp", (32, 256, huge))
    engine = engines.load("trt", package, max_batch=huge)
    warm = engine.open_session()
    assert [bucket.batch for bucket in warm.buckets] == [32, 256, huge]  # type: ignore[attr-defined]
    block = warm._arena.device_bytes  # type: ignore[attr-defined]
    warm.close()
    with cuda.current(0) as device:
        # Leave half of what the largest bucket's block needs, in one piece, and nothing else that would hold it.
        half = device.memory(block // 2)
        for chunk in (1 << 30, block, block // 8):
            try:
                while True:
                    ballast.append(device.memory(chunk))
            except cuda.CudaError:
                pass
        del half
    session = engine.open_session()
    assert [bucket.batch for bucket in session.buckets] == [32, 256]  # type: ignore[attr-defined]
    batch = random_batch(package.spec, 600)
    np.testing.assert_allclose(run(session, batch), direct(package, batch).reshape(-1), atol=2e-5)
    session.close()
    engine.close()


def test_no_memory_at_all_is_an_error_and_a_later_session_opens(
    model: tuple[Package, PlanFile], ballast: list[object]
) -> None:
    from engines import cuda

    package, _ = model
    engine = engines.load("trt", package, max_batch=64)
    with cuda.current(0) as device:
        for chunk in (1 << 30, 16 * MIB, 2 * MIB, 64 << 10, 4096):
            try:
                while True:
                    ballast.append(device.memory(chunk))
            except cuda.CudaError:
                pass
        with pytest.raises((OutOfMemory, LoadError)):
            engine.open_session()
        ballast.clear()
    session = engine.open_session()
    assert run(session, random_batch(package.spec, 3)).shape == (3,)
    session.close()
    engine.close()


def test_pinned_memory_bound_to_a_node_is_copied_from_and_to() -> None:
    from engines import cuda

    with cuda.current(0) as device:
        pinned, stream, memory = cuda.Pinned(1 << 20, node=0), device.stream(), device.memory(1 << 20)
        pinned.array[:] = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
        expected = pinned.array.copy()
        device.copy_in(int(memory), pinned.array, stream)
        stream.synchronize()
        pinned.array[:] = 0
        device.copy_out(pinned.array, int(memory), stream)
        stream.synchronize()
        np.testing.assert_array_equal(pinned.array, expected)
        pinned.close()
        pinned.close()
