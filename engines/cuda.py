"""One GPU through pycuda: its primary context on any thread, streams, events, pinned and device memory, typed errors.

The primary context is the one TensorRT uses. pycuda keeps a stack of contexts per thread and aborts the process when a
thread ends with one on it, also one that the interpreter ends at exit. So the stack is used for short blocks only,
those that create and free (`Device.current`); a thread that serves sessions is bound below it (`Device.bound`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pycuda.driver as cuda
from numpy.typing import NDArray

from engines import driver, placement, plans
from engines.errors import DeviceLost, EngineError, LoadError, OutOfMemory, RunError

_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING, for which pycuda has no name: no implicit waiting for the default stream."""

_devices: dict[int, "Device"] = {}
_devices_lock = threading.Lock()
_started = threading.Event()
"""Set once CUDA has read which devices are visible."""


class _Thread(threading.local):
    pushed: "Device | None" = None
    """Whose context is on top of pycuda's stack on this thread: what pycuda needs to create and free."""
    usable: "Device | None" = None
    """Whose context the driver works with on this thread: enough to launch, record and wait."""


_thread = _Thread()


def open_device(selector: int | str = 0) -> "Device":
    """The GPU of this index, UUID (GPU-...) or MIG slice (MIG-...); one object per device and process.

    Raises `LoadError` when there is no such device or no driver.
    """
    chosen = placement.parse(selector)
    with _devices_lock:
        if chosen.is_mig:
            placement.expose_mig(chosen, started=_started.is_set())
        try:
            cuda.init()
            _started.set()
            by_uuid = chosen.uuid is not None and not chosen.is_mig
            index = driver.index_of(str(chosen.uuid)) if by_uuid else chosen.index
            if index not in _devices:
                if index >= (count := cuda.Device.count()):
                    raise LoadError(f"device: {selector}: only {count} GPUs are visible; see nvidia-smi -L")
                _devices[index] = Device(index)
        except (cuda.Error, RunError, DeviceLost) as error:
            raise LoadError(f"device: {selector}: CUDA does not start: {error}; see nvidia-smi") from error
        return _devices[index]


def describe(selector: int | str = 0) -> plans.Device:
    """What a plan records about the GPU it is built on. Raises `LoadError` as `open_device` does."""
    device = open_device(selector)
    return plans.Device(
        name=device.name,
        compute_capability=device.compute_capability,
        uuid=device.uuid,
        driver=driver.version(),
    )


@contextmanager
def current(selector: int | str = 0) -> Iterator["Device"]:
    """Run a block with a GPU's primary context current on this thread."""
    device = open_device(selector)
    with device.current():
        yield device


class Device:
    """A GPU and its primary context, which lives as long as the process. Use `open_device`."""

    def __init__(self, index: int) -> None:
        handle = cuda.Device(index)
        self.index = index
        self.name: str = handle.name()
        major, minor = handle.compute_capability()
        self.compute_capability = f"{major}.{minor}"
        self.uuid = driver.device_uuid(index)
        self.node = placement.node_of(handle.pci_bus_id())
        """Memory node next to the device, None where that makes no difference."""
        self.lost: str | None = None
        """The sticky error that ended the context, once one has been seen. Raise it as a new `DeviceLost`."""
        self.opening = threading.Lock()
        """Held while an engine or a session allocates, so that memory can be attributed and nothing is half open."""
        self._context = handle.retain_primary_context()
        with self.current():
            self._handle = driver.context_handle()
            # A stream that never carries work: querying it neither waits nor fails unless the context is gone.
            self._probe = cuda.Stream(_NON_BLOCKING)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current on this thread inside the block; free when it is already."""
        before = _thread.pushed, _thread.usable
        if before[0] is self:
            yield
            return
        self._context.push()
        _thread.pushed = _thread.usable = self
        try:
            yield
        finally:
            _thread.pushed, _thread.usable = before
            cuda.Context.pop()

    @contextmanager
    def bound(self) -> Iterator[None]:
        """For a thread's whole life: launches and waits need no `current` inside, creating and freeing do."""
        driver.set_context(self._handle)
        _thread.usable = self
        try:
            yield
        finally:
            _thread.usable = None
            driver.set_context(None)

    @property
    def is_usable(self) -> bool:
        """Whether this thread may launch and wait as it is."""
        return _thread.usable is self

    def typed(self, error: Exception, what: str) -> EngineError:
        """pycuda's error as ours. pycuda keeps no status, so the context is asked whether it survived."""
        if self.lost is None:
            try:
                self._probe.is_done()
            except cuda.Error as sticky:
                self.lost = f"{what}: {error}; the device's context is unusable ({sticky}); restart the process"
        if self.lost is not None:
            return DeviceLost(self.lost)
        kind = OutOfMemory if isinstance(error, cuda.MemoryError) else RunError
        return kind(f"{what}: {error}")

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Run a block of CUDA calls with pycuda's errors, and a lost device, turned into ours."""
        if self.lost is not None:
            raise DeviceLost(self.lost)
        try:
            yield
        except cuda.Error as error:
            raise self.typed(error, what) from error
        except DeviceLost as error:
            self.lost = str(error)
            raise

    def stream(self) -> Any:
        """A new pycuda stream that does not wait for the default stream."""
        return cuda.Stream(_NON_BLOCKING)

    def event(self, *, blocking: bool) -> Any:
        """A new pycuda event without timing. Waiting for a blocking one sleeps; for another one it spins, which is
        quicker by the wake-up and costs the core."""
        flags = cuda.event_flags.DISABLE_TIMING
        return cuda.Event(flags | cuda.event_flags.BLOCKING_SYNC if blocking else flags)

    def memory(self, nbytes: int) -> Any:
        """Device memory, aligned to 256 bytes at least; `int()` of it is its address. Freed when dropped."""
        return cuda.mem_alloc(max(nbytes, 1))

    def pinned(self, nbytes: int) -> "Pinned":
        """Zeroed page-locked host memory on the device's node."""
        return Pinned(nbytes, self.node)

    @staticmethod
    def copy_in(device_address: int, host: NDArray[np.uint8], stream: Any) -> None:
        """Enqueue a copy from pinned memory to the device."""
        cuda.memcpy_htod_async(device_address, host, stream)

    @staticmethod
    def copy_out(host: NDArray[np.uint8], device_address: int, stream: Any) -> None:
        """Enqueue a copy from the device to pinned memory."""
        cuda.memcpy_dtoh_async(host, device_address, stream)

    @staticmethod
    def free_bytes() -> int:
        """Free memory of the device whose context is current."""
        return int(cuda.mem_get_info()[0])


class Pinned:
    """Zeroed page-locked host memory: `array` is [nbytes] uint8, page-aligned. Close it with the context current."""

    __slots__ = ("_registered", "array")

    def __init__(self, nbytes: int, node: int | None) -> None:
        self._registered = 0
        self.array: NDArray[np.uint8]
        if node is None:
            self.array = cuda.pagelocked_empty(max(nbytes, 1), np.uint8, mem_flags=cuda.host_alloc_flags.PORTABLE)
            self.array.fill(0)  # touches every page, so that the first batch does not
        else:
            self.array = placement.pages_on(max(nbytes, 1), node)
            driver.register_pages(self.array.ctypes.data, self.array.nbytes)
            self._registered = self.array.ctypes.data

    def close(self) -> None:
        """Give the memory back; `array` and its views must not be used afterwards. Idempotent."""
        address, self._registered = self._registered, 0
        self.array = np.empty(0, np.uint8)
        if address:
            driver.unregister_pages(address)


CudaError = cuda.Error
"""What pycuda's calls raise; catch it on a hot path and pass it to `Device.typed`."""
