"""Engines that several chains have in common: one load, leases, room for others, ends and failures."""

import asyncio
import shutil
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import engines
from engines.base import Engine, Features, Scores
from engines.cache import EngineCache
from engines.errors import LoadError, OutOfMemory, RunError
from engines.light import LightEngine
from engines.package import Package
from tests.models import random_batch
from tests.worker.chunks import ManualClock
from tests.worker.topics import config, tipping, whole
from worker.chain import Chain
from worker.clock import SystemClock
from worker.config import WorkerConfig
from worker.config_quality import BreakerConfig, SegmentConfig
from worker.errors import WorkerError
from worker.metrics import Metrics
from worker.outcome import Absent
from worker.service import Service
from worker.station import Opener, OpenSession, open_session


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tipping(tmp_path_factory.mktemp("models"))


def chain(
    stack: AsyncExitStack, package: Package, cache: EngineCache, opener: Opener = open_session, **options: object
) -> Chain:
    return Chain(config(package, **options), BreakerConfig(), Metrics(), ManualClock(), stack, cache, opener)


def kinds(cache: EngineCache) -> list[str]:
    return [key.kind for key, _ in cache.loaded()]


class Counted(LightEngine):
    """Takes 100 bytes of a device, as it says, and remembers what was loaded and unloaded."""

    device_bytes = 100
    log: ClassVar[list[str]] = []

    def __init__(self, package: Package, **options: Any) -> None:
        super().__init__(package, **options)
        self.log.append(f"load {package.name}")

    def close(self) -> None:
        self.log.append("unload")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Loads and unloads of the light engine."""
    log: list[str] = []
    monkeypatch.setattr(Counted, "log", log)
    monkeypatch.setitem(engines.KINDS, "light", (Counted.__module__, "Counted"))
    return log


async def test_topics_and_segments_with_one_model_share_its_engines(package: Package, counted: list[str]) -> None:
    cache = EngineCache()
    batch = random_batch(package.spec, 5)
    night = SegmentConfig(name="night", model=str(package.path.parent), tensor="ids", values=(1,))
    async with AsyncExitStack() as stack:
        first = chain(stack, package, cache, segments=(night,))
        second = chain(stack, package, cache, name="u", threads=1)
        for loaded in (first, second):
            await loaded.load()
        assert counted == [f"load {package.name}"]
        assert sorted(kinds(cache)) == ["light", "ort"]
        _, (_, light), (segment,) = await first.open_lane("t-0")
        _, (_, other), _ = await second.open_lane("u-0")
        assert light.runs is not other.runs, "a session each"
        np.testing.assert_array_equal(await light.runs.run(batch), await other.runs.run(batch))
        np.testing.assert_array_equal(await light.runs.run(batch), await segment.runs.run(batch))


async def test_another_model_or_other_options_are_another_engine(package: Package, tmp_path: Path) -> None:
    cache = EngineCache()
    other = tipping(tmp_path, "other", seed=3)
    async with AsyncExitStack() as stack:
        for model, options in ((package, {}), (other, {}), (package, {"max_batch": 8}), (package, {"threads": 2})):
            await chain(stack, model, cache, fallback=(), **options).load()
    assert kinds(cache) == ["ort"] * 4
    for _ in range(2):
        async with AsyncExitStack() as stack:
            await chain(stack, package, cache, engine="light", fallback=(), threads=2).load()
            await chain(stack, package, cache, engine="light", fallback=(), threads=3).load()
    assert kinds(cache)[4:] == ["light"], "it has no threads that they could differ in"


async def test_a_model_that_was_replaced_at_its_path_is_another_engine(package: Package, tmp_path: Path) -> None:
    cache = EngineCache()
    path = shutil.copytree(package.path, tmp_path / "m" / package.version)
    async with AsyncExitStack() as stack:
        await chain(stack, package, cache, model=str(path), fallback=()).load()
        shutil.rmtree(path)
        shutil.copytree(tipping(tmp_path, "other", seed=3).path, path)
        await chain(stack, package, cache, model=str(path), fallback=()).load()
    assert kinds(cache) == ["ort", "ort"]


async def test_leases_end_with_the_chain_after_its_sessions_and_idle_engines_stay_until_room_is_needed(
    package: Package, tmp_path: Path, counted: list[str]
) -> None:
    cache = EngineCache(250)
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await chain(first, package, cache, engine="light", fallback=()).load()
        await chain(second, package, cache, engine="light", fallback=(), name="u").load()
        other, third = tipping(tmp_path, "other"), tipping(tmp_path, "third")
        await first.aclose()
        await chain(first, other, cache, engine="light", fallback=()).load()
        with pytest.raises(OutOfMemory, match="would take 300 bytes"):
            await chain(first, third, cache, engine="light", fallback=()).load()
        assert counted == [f"load {package.name}", "load other", "load third", "unload"]
        await second.aclose()
        await chain(first, third, cache, engine="light", fallback=()).load()
        assert counted[4:] == ["load third", "unload"], "that of the chain that has ended"
    assert sorted(key.path.parent.name for key, _ in cache.loaded()) == ["other", "third"]
    cache.close()
    assert counted.count("unload") == 4 and cache.loaded() == []


def three_topics(package: Package, tmp_path: Path, max_weights_bytes: int) -> Service:
    topics = [
        config(model, name=name, engine="light", fallback=())
        for name, model in (("t", package), ("u", package), ("v", tipping(tmp_path, "other")))
    ]
    return Service(whole(*topics, worker=WorkerConfig(max_weights_bytes=max_weights_bytes)), 0, SystemClock())


async def test_a_worker_loads_each_model_once_shows_its_bytes_and_unloads_at_its_end(
    package: Package, tmp_path: Path, counted: list[str]
) -> None:
    service = three_topics(package, tmp_path, 200)
    service._admin()
    async with AsyncExitStack() as stack:
        await service._load(stack)
        assert counted == [f"load {package.name}", "load other"]
        labels = {"engine": "light", "model": str(package.path)}
        assert service._metrics.registry.get_sample_value("scorelane_weights_bytes", labels) == 100
    assert counted[2:] == ["unload", "unload"]


async def test_a_worker_whose_weights_exceed_the_bound_does_not_start_and_says_what_to_change(
    package: Package, tmp_path: Path, counted: list[str]
) -> None:
    service = three_topics(package, tmp_path, 150)
    async with AsyncExitStack() as stack:
        with pytest.raises(WorkerError) as caught:
            await service._load(stack)
    assert str(caught.value) == (
        f"topic v: light of {tmp_path}/other/1: with it, the weights in use would take 200 bytes of device memory, "
        "worker.max_weights_bytes allows 150; raise worker.max_weights_bytes, or serve fewer models or a smaller one"
    )
    assert counted.count("unload") == 2


async def test_a_load_that_fails_leaves_nothing_behind(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = EngineCache()

    def load(kind: str, package: Package, **options: object) -> Engine:
        raise LoadError("no plan")

    async with AsyncExitStack() as stack:
        with monkeypatch.context() as patched, pytest.raises(LoadError, match="no plan"):
            patched.setattr("engines.load", load)
            await chain(stack, package, cache).load()
        assert cache.loaded() == []
        await chain(stack, package, cache).load()
        assert kinds(cache) == ["light", "ort"]


async def test_a_start_that_is_given_up_leaves_the_engine_idle(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EngineCache()
    loading, go = threading.Event(), threading.Event()
    load = engines.load

    def slow(*given: Any, **options: Any) -> Engine:
        loading.set()
        go.wait(30)
        return load(*given, **options)

    monkeypatch.setattr("engines.load", slow)
    async with AsyncExitStack() as stack:
        start = asyncio.create_task(chain(stack, package, cache, engine="light", fallback=()).load())
        await asyncio.to_thread(loading.wait, 30)
        start.cancel()
        await asyncio.wait({start})
    go.set()
    await asyncio.to_thread(cache.close)  # the load has the lock until it is done
    assert cache.loaded() == []


class Unsteady(LightEngine):
    """Its sessions fail while they are measured."""

    inline = False

    def open_session(self) -> Any:
        session = super().open_session()

        def fail(features: Features) -> None:
            raise RunError("no memory for a batch")

        session.submit = fail  # type: ignore[method-assign]
        return session


async def test_a_primary_that_stays_cold_is_idle_and_its_session_closed(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, opened = EngineCache(), []

    async def opener(engine: Engine, name: str) -> OpenSession:
        session = await open_session(engine, name)
        opened.append(session)
        return session

    monkeypatch.setitem(engines.KINDS, "trees", (Unsteady.__module__, "Unsteady"))
    monkeypatch.setattr("engines.THREADED", ())
    async with AsyncExitStack() as stack:
        loaded = chain(stack, package, cache, opener, engine="trees", fallback=("light",), cold_start="light")
        await loaded.load()
        station, _, _ = await loaded.open_lane("t-0")
        await loaded.warm_up()
        assert not station.warm
        with pytest.raises(Absent):
            await opened[-1].run(random_batch(package.spec, 1))
        held = {key.kind: bool(cache._held[key].leases) for key, _ in cache.loaded()}
        assert held == {"light": True, "trees": False}


class Hanging:
    """A session that answers while it is measured and cannot be closed afterwards."""

    depth, inline = 1, False

    async def run(self, features: Features) -> Scores:
        return np.zeros(len(features["dense"]), np.float32)

    def retire(self) -> None:
        """Nothing waits."""

    async def close(self, timeout_s: float) -> bool:
        return False


async def test_engines_under_a_session_left_behind_are_not_unloaded(package: Package, counted: list[str]) -> None:
    cache = EngineCache()

    async def opener(engine: Engine, name: str) -> OpenSession:
        return Hanging()

    async with AsyncExitStack() as stack:
        loaded = chain(stack, package, cache, opener, engine="light", fallback=())
        await loaded.load()
        await loaded.open_lane("t-0")
    cache.close()
    assert counted == [f"load {package.name}"], "to unload it could hang as the session does"
