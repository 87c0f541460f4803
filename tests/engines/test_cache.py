"""The cache of loaded engines: budget, least recently used first, leases."""

import threading
from pathlib import Path

import pytest

from engines.base import Session
from engines.cache import EngineCache, EngineKey
from engines.errors import DeviceLost, LoadError, OutOfMemory


class Sized:
    name, version, max_batch, inline = "trt", "1", 1, False

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


def key(name: str) -> EngineKey:
    return EngineKey("trt", Path(name), "", ())


def names(cache: EngineCache) -> list[str]:
    return [str(key.path) for key, _ in cache.loaded()]


def use(cache: EngineCache, load: Loader, name: str, size: int) -> Sized:
    with cache.lease(key(name), lambda: load(size)) as engine:
        assert isinstance(engine, Sized)
        assert not engine.closed
        return engine


def test_an_engine_is_loaded_once_and_stays_warm() -> None:
    cache, load = EngineCache(100), Loader()
    assert use(cache, load, "a", 40) is use(cache, load, "a", 40)
    assert len(load.made) == 1
    assert cache.loaded() == [(key("a"), 40)]


def test_the_least_recently_used_idle_engine_makes_room() -> None:
    cache, load = EngineCache(100), Loader()
    for name in ("a", "b", "a", "c"):  # b is the one not used since
        use(cache, load, name, 40)
    assert names(cache) == ["a", "c"]
    assert [engine.closed for engine in load.made] == [0, 1, 0]


def test_a_leased_engine_is_never_unloaded() -> None:
    cache, load = EngineCache(100, setting="worker.bound"), Loader()
    with cache.lease(key("a"), lambda: load(60)) as engine:
        with pytest.raises(
            OutOfMemory, match=r"trt of b: .* 120 bytes .*, worker.bound allows 100; raise worker.bound"
        ):
            use(cache, load, "b", 60)
        assert isinstance(engine, Sized) and not engine.closed
    assert [engine.closed for engine in load.made] == [0, 1]
    use(cache, load, "b", 60)
    assert names(cache) == ["b"]


def test_idle_engines_go_one_by_one_while_the_device_is_full() -> None:
    cache, load = EngineCache(1000), Loader(device=100)
    for name in ("a", "b", "c"):
        use(cache, load, name, 30)
    use(cache, load, "d", 50)
    assert names(cache) == ["c", "d"]
    with cache.lease(key("c"), lambda: load(30)), pytest.raises(OutOfMemory, match="device full"):
        use(cache, load, "e", 90)


def test_a_failed_load_holds_nothing() -> None:
    cache = EngineCache(100)

    def fail() -> Sized:
        raise LoadError("no plan")

    with pytest.raises(LoadError), cache.lease(key("a"), fail):
        pass
    assert cache.loaded() == []


def test_without_a_bound_everything_stays() -> None:
    cache, load = EngineCache(), Loader()
    for name in ("a", "b"):
        use(cache, load, name, 1 << 39)
    assert names(cache) == ["a", "b"]


def test_close_unloads_everything_once_nothing_is_leased() -> None:
    cache, load = EngineCache(), Loader()
    use(cache, load, "a", 10)
    with cache.lease(key("b"), lambda: load(10)):
        cache.close()
        assert names(cache) == ["a", "b"], "a hung session of b may keep the device from freeing memory"
    cache.close()
    assert cache.loaded() == []
    assert [engine.closed for engine in load.made] == [1, 1]


def test_an_engine_that_cannot_be_unloaded_keeps_no_other_from_it() -> None:
    cache, load = EngineCache(), Loader()
    for name in ("a", "b", "c"):
        use(cache, load, name, 10)

    def lost() -> None:
        raise DeviceLost("gone")

    load.made[1].close = lost  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        cache.close()
    assert (cache.loaded(), load.made[0].closed, load.made[2].closed) == ([], 1, 1)


def test_leases_count_one_by_one_and_end_once() -> None:
    cache, load = EngineCache(), Loader()
    first, second = (cache.lease(key("a"), lambda: load(10)) for _ in range(2))
    assert first.open() is second.open()
    first.close()
    first.close()
    cache.close()
    assert names(cache) == ["a"]
    second.close()
    cache.close()
    assert load.made[0].closed == 1


def test_two_threads_that_want_the_same_engine_get_one() -> None:
    cache, load = EngineCache(), Loader()
    loading, go = threading.Event(), threading.Event()

    def slow() -> Sized:
        loading.set()
        go.wait(30)
        return load(10)

    leases = [cache.lease(key("a"), slow) for _ in range(2)]
    threads = [threading.Thread(target=lease.open) for lease in leases]
    for thread in threads:
        thread.start()
    loading.wait(30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(load.made) == 1


def test_a_lease_that_ends_while_its_engine_is_loaded_waits_for_nothing_and_keeps_nothing() -> None:
    cache, load = EngineCache(), Loader()
    loading, go = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def slow() -> Sized:
        loading.set()
        go.wait(30)
        return load(10)

    lease = cache.lease(key("a"), slow)

    def opening() -> None:
        try:
            lease.open()
        except LoadError as error:
            raised.append(error)

    thread = threading.Thread(target=opening)
    thread.start()
    loading.wait(30)
    lease.close()  # what a start that is given up does
    go.set()
    thread.join(30)
    assert "nobody waits" in str(raised)
    cache.close()
    assert load.made[0].closed == 1
