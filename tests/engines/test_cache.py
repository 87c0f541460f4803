"""The cache of loaded engines: budget, least recently used first, leases."""

import pytest

from engines.base import Session
from engines.cache import EngineCache
from engines.errors import LoadError, OutOfMemory


class Sized:
    name, version, max_batch = "trt", "1", 1

    def __init__(self, device_bytes: int) -> None:
        self.device_bytes = device_bytes
        self.closed = 0

    def open_session(self) -> Session:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


class Loader:
    """Loads engines of given sizes and counts; out of memory while `device` would be exceeded."""

    def __init__(self, device: int = 1 << 40) -> None:
        self.device = device
        self.made: list[Sized] = []

    def __call__(self, size: int) -> Sized:
        if sum(engine.device_bytes for engine in self.made if not engine.closed) + size > self.device:
            raise OutOfMemory("device full")
        self.made.append(Sized(size))
        return self.made[-1]


def use(cache: EngineCache, load: Loader, key: str, size: int) -> Sized:
    with cache.lease(key, lambda: load(size)) as engine:
        assert isinstance(engine, Sized)
        assert not engine.closed
        return engine


def test_an_engine_is_loaded_once_and_stays_warm() -> None:
    cache, load = EngineCache(100), Loader()
    assert use(cache, load, "a", 40) is use(cache, load, "a", 40)
    assert len(load.made) == 1
    assert cache.device_bytes == 40


def test_the_least_recently_used_idle_engine_makes_room() -> None:
    cache, load = EngineCache(100), Loader()
    for key in ("a", "b", "a", "c"):  # b is the one not used since
        use(cache, load, key, 40)
    assert cache.keys() == ["a", "c"]
    assert [engine.closed for engine in load.made] == [0, 1, 0]


def test_a_leased_engine_is_never_unloaded() -> None:
    cache, load = EngineCache(100), Loader()
    with cache.lease("a", lambda: load(60)) as engine:
        with pytest.raises(OutOfMemory, match=r"120 of 100 bytes; raise the limit"):
            use(cache, load, "b", 60)
        assert isinstance(engine, Sized) and not engine.closed
    assert [engine.closed for engine in load.made] == [0, 1]
    use(cache, load, "b", 60)
    assert cache.keys() == ["b"]


def test_idle_engines_go_one_by_one_while_the_device_is_full() -> None:
    cache, load = EngineCache(1000), Loader(device=100)
    for key in ("a", "b", "c"):
        use(cache, load, key, 30)
    use(cache, load, "d", 50)
    assert cache.keys() == ["c", "d"]
    with cache.lease("c", lambda: load(30)), pytest.raises(OutOfMemory, match="device full"):
        use(cache, load, "e", 90)


def test_a_failed_load_holds_nothing() -> None:
    cache = EngineCache(100)

    def fail() -> Sized:
        raise LoadError("no plan")

    with pytest.raises(LoadError), cache.lease("a", fail):
        pass
    assert (cache.keys(), cache.device_bytes) == ([], 0)


def test_close_unloads_the_idle_ones() -> None:
    cache, load = EngineCache(100), Loader()
    use(cache, load, "a", 10)
    with cache.lease("b", lambda: load(10)):
        cache.close()
        assert cache.keys() == ["b"]
    cache.close()
    assert [engine.closed for engine in load.made] == [1, 1]
