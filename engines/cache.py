"""Which loaded engines stay on the device: least recently used goes first when the bytes run out."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from engines.base import Engine
from engines.errors import OutOfMemory


class DeviceEngine(Engine, Protocol):
    device_bytes: int
    """Device memory that the engine's weights take, without its sessions."""


@dataclass(slots=True)
class _Held:
    engine: DeviceEngine
    leases: int = 0


class EngineCache:
    """Engines by key, loaded on demand, at most `max_bytes` of device memory together. Safe from any thread.

    An engine with a lease is never unloaded. One without stays warm until room is needed. A load holds the cache's
    lock: two callers that want the same engine get one, and loads do not compete for memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.RLock()
        self._held: OrderedDict[Hashable, _Held] = OrderedDict()

    @property
    def device_bytes(self) -> int:
        """Bytes of the engines loaded now."""
        return sum(held.engine.device_bytes for held in self._held.values())

    def keys(self) -> list[Hashable]:
        """Loaded engines, least recently used first."""
        return list(self._held)

    @contextmanager
    def lease(self, key: Hashable, load: Callable[[], DeviceEngine]) -> Iterator[DeviceEngine]:
        """The engine of this key, loaded with `load` if need be, kept until the block ends.

        Idle engines make room: one after another while `load` runs out of memory, then until the total fits. Raises
        what `load` raises, and `OutOfMemory` when the leased engines alone exceed `max_bytes`.
        """
        held = self._take(key, load)
        try:
            yield held.engine
        finally:
            with self._lock:
                held.leases -= 1

    def close(self) -> None:
        """Unload every idle engine."""
        with self._lock:
            while self._evict_one():
                pass

    def _take(self, key: Hashable, load: Callable[[], DeviceEngine]) -> _Held:
        with self._lock:
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = _Held(self._load(load))
            self._held.move_to_end(key)
            held.leases += 1
            while self.device_bytes > self.max_bytes and self._evict_one():
                pass
            if (total := self.device_bytes) > self.max_bytes:
                del self._held[key]
                held.engine.close()
                raise OutOfMemory(
                    f"{key}: the engines in use would take {total} of {self.max_bytes} bytes; raise the limit, or "
                    "stop a topic that uses another model"
                )
            return held

    def _load(self, load: Callable[[], DeviceEngine]) -> DeviceEngine:
        while True:
            try:
                return load()
            except OutOfMemory:
                if not self._evict_one():
                    raise

    def _evict_one(self) -> bool:
        for key, held in self._held.items():
            if held.leases == 0:
                del self._held[key]
                held.engine.close()
                return True
        return False
