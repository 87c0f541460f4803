"""Which loaded engines stay on the device: least recently used goes first when the bytes run out."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from engines.base import Engine
from engines.errors import LoadError, OutOfMemory


class EngineKey(NamedTuple):
    """What two users must have in common to share an engine."""

    kind: str
    path: Path
    """Of the package, resolved."""
    digest: str
    """Of the package's manifest: what lies at the path now may be another one than before."""
    options: tuple[tuple[str, object], ...]
    """What the kind is loaded with, sorted."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.path}"


class _Held:
    __slots__ = ("engine", "leases")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.leases: set[Lease] = set()


class Lease:
    """Keeps an engine loaded from `open` to `close`. Made by `EngineCache.lease`; a context manager."""

    def __init__(self, cache: "EngineCache", key: EngineKey, load: Callable[[], Engine]) -> None:
        self._cache = cache
        self._key = key
        self._load = load
        self._held: _Held | None = None
        self._closed = False

    def open(self) -> Engine:
        """The engine, loaded if need be; blocks meanwhile and while others load.

        Idle engines make room: one after another while `load` runs out of memory, then until the total fits. Raises
        what `load` raises, `OutOfMemory` when the leased engines alone exceed the cache's bound, and `LoadError` when
        the lease was closed in the meantime.
        """
        self._held = self._cache.take(self, self._key, self._load)
        # `close` looks in the reverse order, so that one of the two sees the other.
        if self._closed:
            self.close()
            raise LoadError(f"{self._key}: nobody waits for the engine any more")
        return self._held.engine

    def close(self) -> None:
        """The engine may go; no session of it may be open. Waits for nothing, not for an `open` on another thread
        either, which then raises. Idempotent."""
        self._closed = True
        if self._held is not None:
            self._held.leases.discard(self)

    def __enter__(self) -> Engine:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class EngineCache:
    """Engines by key, loaded on demand, at most `max_bytes` of device memory together. Safe from any thread.

    An engine with a lease is never unloaded. One without stays warm until room is needed. A load holds the cache's
    lock: two callers that want the same engine get one, and loads do not compete for memory.
    """

    def __init__(self, max_bytes: int = 0, *, setting: str = "max_bytes") -> None:
        """`max_bytes` 0: no bound but the device's. `setting` is what the user knows the bound by."""
        self._max_bytes = max_bytes
        self._setting = setting
        self._lock = threading.Lock()
        self._held: OrderedDict[EngineKey, _Held] = OrderedDict()

    def lease(self, key: EngineKey, load: Callable[[], Engine]) -> Lease:
        """For the engine of this key, which `load` loads where it is not there."""
        return Lease(self, key, load)

    def loaded(self) -> list[tuple[EngineKey, int]]:
        """Key and device bytes of each loaded engine, least recently used first."""
        return [(key, held.engine.device_bytes) for key, held in self._held.copy().items()]

    def close(self) -> None:
        """Unload all engines, unless one is leased still: its session hangs, and to free memory of the same device
        would wait for it."""
        with self._lock, ExitStack() as unloading:
            if not any(held.leases for held in self._held.values()):
                for held in self._held.values():
                    unloading.callback(held.engine.close)
                self._held.clear()

    def take(self, lease: Lease, key: EngineKey, load: Callable[[], Engine]) -> _Held:
        """For `Lease.open`."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = _Held(self._load(load))
            self._held.move_to_end(key)
            held.leases.add(lease)
            while self._exceeded() and self._evict_one():
                pass
            if self._exceeded():
                del self._held[key]
                total = self._device_bytes() + held.engine.device_bytes
                held.engine.close()
                raise OutOfMemory(
                    f"{key}: with it, the weights in use would take {total} bytes of device memory, {self._setting} "
                    f"allows {self._max_bytes}; raise {self._setting}, or serve fewer models or a smaller one"
                )
            return held

    def _load(self, load: Callable[[], Engine]) -> Engine:
        while True:
            try:
                return load()
            except OutOfMemory:
                if not self._evict_one():
                    raise

    def _exceeded(self) -> bool:
        return 0 < self._max_bytes < self._device_bytes()

    def _device_bytes(self) -> int:
        return sum(held.engine.device_bytes for held in self._held.values())

    def _evict_one(self) -> bool:
        for key, held in self._held.items():
            if not held.leases:
                del self._held[key]
                held.engine.close()
                return True
        return False
