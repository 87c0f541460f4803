"""A topic's engines: what is loaded when, who shares a station, what is guarded."""

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from engines.cache import EngineCache
from engines.constant import ConstantEngine
from engines.errors import LoadError
from engines.package import Package, write_package
from schemas.spec import builtin
from tests.models import random_batch, tiny_package
from tests.worker.chunks import ManualClock
from tests.worker.topics import config, tipping
from worker.breaker import State
from worker.chain import Chain
from worker.config_quality import BreakerConfig, SegmentConfig
from worker.metrics import Metrics
from worker.station import open_session


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tipping(tmp_path_factory.mktemp("models"))


def chain(stack: AsyncExitStack, package: Package, metrics: Metrics | None = None, **options: object) -> Chain:
    topic = config(package, **options)
    return Chain(topic, BreakerConfig(), metrics or Metrics(), ManualClock(), stack, EngineCache(), open_session)


async def test_each_lane_has_its_own_session_of_the_primary_and_shares_the_others(package: Package) -> None:
    async with AsyncExitStack() as stack:
        loaded = chain(stack, package, fallback=("light", "constant"))
        await loaded.load()
        one, first, _ = await loaded.open_lane("t-0")
        two, second, _ = await loaded.open_lane("t-1")
        assert [tier.engine for tier in first] == ["ort", "light", "constant"]
        assert {(tier.model, tier.version) for tier in first} == {(package.name, package.version)}
        assert first[0].runs is one and second[0].runs is two and one is not two
        assert [a.runs is b.runs for a, b in zip(first, second, strict=True)] == [False, True, True]
        assert all(tier.runs.warm and tier.service_time.known for tier in (*first, *second))
    assert not one.warm and not two.warm, "what was opened is closed"


async def test_every_engine_but_the_last_is_guarded_lane_by_lane(package: Package) -> None:
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        loaded = chain(stack, package, metrics, fallback=("light", "constant"))
        await loaded.load()
        _, first, _ = await loaded.open_lane("t-0")
        await loaded.open_lane("t-1")
        assert [tier.breaker is not None for tier in first] == [True, True, False]
        assert set(loaded.breakers) == {"ort", "light"}
        assert loaded.primary_breakers is loaded.breakers["ort"]
        assert dict(loaded.breakers["ort"].states()) == {"t-0": State.CLOSED, "t-1": State.CLOSED}
        loaded.breakers["ort"].hold("maintenance", 0.0)
        assert dict(loaded.breakers["ort"].states()) == {"t-0": State.OPEN, "t-1": State.OPEN}
        labels = {"topic": "t", "engine": "ort", "to": "open", "cause": "held"}
        assert metrics.registry.get_sample_value("scorelane_breaker_moves_total", labels) == 2


async def test_an_engine_alone_is_not_guarded(package: Package) -> None:
    async with AsyncExitStack() as stack:
        loaded = chain(stack, package, fallback=())
        await loaded.load()
        _, tiers, _ = await loaded.open_lane("t-0")
        assert [tier.breaker for tier in tiers] == [None]
        assert loaded.primary_breakers is None


async def test_the_engines_of_a_chain_score_with_the_topics_package(package: Package) -> None:
    batch = random_batch(package.spec, 5)
    async with AsyncExitStack() as stack:
        loaded = chain(stack, package)
        await loaded.load()
        _, (primary, light), _ = await loaded.open_lane("t-0")
        deep, quick = await primary.runs.run(batch), await light.runs.run(batch)
    assert deep.shape == quick.shape == (5,)
    assert np.abs(deep - quick).max() > 1e-3, "two models"


async def test_a_segments_engine_is_shared_and_scores_with_its_own_package(package: Package, tmp_path: Path) -> None:
    own = tipping(tmp_path, "own", seed=9)
    segment = SegmentConfig(name="night", model=str(own.path), tensor="ids", values=(1,))
    batch = random_batch(package.spec, 5)
    async with AsyncExitStack() as stack:
        loaded = chain(stack, package, segments=(segment,))
        await loaded.load()
        _, (_, light), (night,) = await loaded.open_lane("t-0")
        _, _, (again,) = await loaded.open_lane("t-1")
        assert (night.engine, night.model) == ("night:light", "own")
        assert night.runs is again.runs
        assert night.breaker is not None and again.breaker is not None
        assert set(loaded.breakers) == {"ort", "night:light"}
        assert dict(loaded.breakers["night:light"].states()) == {"t-0": State.CLOSED, "t-1": State.CLOSED}
        assert np.abs(await night.runs.run(batch) - await light.runs.run(batch)).max() > 1e-3


async def test_a_segment_with_other_inputs_is_refused(package: Package, tmp_path: Path) -> None:
    ads = tiny_package(tmp_path, "ad", "lr", name="ads")
    segment = SegmentConfig(name="night", model=str(ads.path), tensor="ids", values=(1,))
    async with AsyncExitStack() as stack:
        with pytest.raises(LoadError, match=r"segment night: model: .*its inputs are dense float32.*train it with"):
            await chain(stack, package, segments=(segment,)).load()


async def test_a_cold_start_opens_lanes_without_the_primary_and_warms_up_later(package: Package) -> None:
    async with AsyncExitStack() as stack:
        loaded = chain(stack, package, cold_start="light")
        await loaded.load()
        station, (primary, light), _ = await loaded.open_lane("t-0")
        assert (primary.runs.warm, light.runs.warm) == (False, True)
        assert not station.service_time.known
        await loaded.warm_up()
        assert primary.runs.warm and station.service_time.known
        assert len(await primary.runs.run(random_batch(package.spec, 3))) == 3
    assert not station.warm


async def test_a_warm_chain_has_nothing_to_warm_up(package: Package) -> None:
    async with AsyncExitStack() as stack:
        loaded = chain(stack, package)
        await loaded.load()
        station, _, _ = await loaded.open_lane("t-0")
        runs = station._executor
        await loaded.warm_up()
        assert station._executor is runs


async def test_a_primary_that_cannot_be_loaded_stays_cold(
    tmp_path: Path, package: Package, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"model.onnx": b"no onnx", "light.npz": package.file("light.npz").read_bytes()}
    broken = write_package(
        tmp_path, name="b", version="1", kind="lr", files={**files, "spec.toml": builtin("tipping").dumps()}
    )
    async with AsyncExitStack() as stack:
        with pytest.raises(LoadError, match=r"model\.onnx"):
            await chain(stack, broken).load()
        loaded = chain(stack, broken, cold_start="light")
        await loaded.load()
        station, _, _ = await loaded.open_lane("t-0")
        with caplog.at_level(logging.ERROR):
            await loaded.warm_up()
        assert not station.warm
    assert "topic t: the primary engine stays cold, fallbacks answer: " in caplog.text


async def test_a_package_that_is_not_there_is_named(tmp_path: Path, package: Package) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(LoadError, match="none: "):
            await chain(stack, package, model=str(tmp_path / "none")).load()


@pytest.mark.parametrize(("device", "selector"), [("1", 1), ("GPU-0a1b", "GPU-0a1b"), ("MIG-7f", "MIG-7f")])
async def test_the_gpu_engine_is_loaded_on_the_topics_device(
    package: Package, monkeypatch: pytest.MonkeyPatch, device: str, selector: int | str
) -> None:
    asked: dict[str, object] = {}

    def load(kind: str, package: Package, **options: object) -> ConstantEngine:
        asked[kind] = options.get("device")
        return ConstantEngine(package, value=0.5)

    monkeypatch.setattr("engines.load", load)
    async with AsyncExitStack() as stack:
        await chain(stack, package, engine="trt", fallback=("light",), device=device).load()
    assert asked == {"trt": selector, "light": None}
