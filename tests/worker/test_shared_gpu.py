"""Topics that share an engine on a device that is not there (`fake_gpu`): weights once, nothing left behind."""

from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from engines.build import shapes
from engines.cache import EngineCache
from engines.errors import OutOfMemory
from engines.package import Package
from tests.engines.fake_gpu import Gpu
from tests.engines.trt_support import direct, gpu, put_plan
from tests.models import random_batch
from tests.worker.chunks import ManualClock
from tests.worker.topics import config, tipping
from worker.chain import Chain
from worker.config_quality import BreakerConfig
from worker.metrics import Metrics
from worker.station import open_session

__all__ = ["gpu"]
"""Fixture."""

PROBE = 1
"""The device's own stream, which stays."""


@pytest.fixture
def package(tmp_path: Path) -> Package:
    made = tipping(tmp_path)
    put_plan(made, shapes.profiles(made.spec, [1, 64], []))
    return made


def chain(stack: AsyncExitStack, package: Package, cache: EngineCache, name: str) -> Chain:
    topic = config(package, name=name, engine="trt", fallback=(), max_batch=64)
    return Chain(topic, BreakerConfig(), Metrics(), ManualClock(), stack, cache, open_session)


async def test_two_topics_have_their_weights_on_the_device_once(gpu: Gpu, package: Package) -> None:
    cache = EngineCache()
    batch = random_batch(package.spec, 40)
    async with AsyncExitStack() as stack:
        for name in ("t", "u"):
            loaded = chain(stack, package, cache, name)
            await loaded.load()
            station, _, _ = await loaded.open_lane(f"{name}-0")
            np.testing.assert_array_equal(await station.run(batch), direct(package, batch))
        [(key, nbytes)] = cache.loaded()
        assert (key.kind, nbytes > 0) == ("trt", True)
    assert gpu.objects == PROBE + 1, "the sessions are gone, the weights are idle"
    cache.close()
    assert (gpu.objects, gpu.used) == (PROBE, 0)


async def test_weights_above_the_bound_leave_nothing_on_the_device(gpu: Gpu, package: Package) -> None:
    cache = EngineCache(1, setting="worker.max_weights_bytes")
    async with AsyncExitStack() as stack:
        with pytest.raises(OutOfMemory, match=r"^trt of .*worker\.max_weights_bytes allows 1; raise"):
            await chain(stack, package, cache, "t").load()
    assert (cache.loaded(), gpu.objects) == ([], PROBE)
