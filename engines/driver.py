"""The calls that pycuda lacks, through cuda-bindings: graph capture and launch, and device UUIDs. Errors typed here.

Handles are plain integers at this border: `Stream.handle` of pycuda is what a capture or a launch takes.
"""

import uuid
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver

from engines.errors import DeviceLost, EngineError, LoadError, OutOfMemory, RunError

_OK: Final = driver.CUresult.CUDA_SUCCESS

STICKY: Final = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT CONTAINED CONTEXT_IS_DESTROYED DEINITIALIZED ECC_UNCORRECTABLE EXTERNAL_DEVICE HARDWARE_STACK_ERROR "
        "ILLEGAL_ADDRESS ILLEGAL_INSTRUCTION INVALID_ADDRESS_SPACE INVALID_PC LAUNCH_FAILED LAUNCH_TIMEOUT "
        "MISALIGNED_ADDRESS MPS_CLIENT_TERMINATED MPS_CONNECTION_FAILED MPS_RPC_FAILURE MPS_SERVER_NOT_READY "
        "NVLINK_UNCORRECTABLE SYSTEM_NOT_READY TENSOR_MEMORY_LEAK UNKNOWN"
    ).split()
)
"""Errors after which every later call of the process fails too: only a new process gets the device back."""


class CaptureRefused(RunError):
    """Work that cannot be captured into a graph; it still runs when enqueued eagerly."""


def check(result: tuple[Any, ...], call: str) -> Any:
    """The value of a driver call, or its error: `OutOfMemory`, `DeviceLost` (sticky) or `RunError`."""
    status, *values = result
    if status != _OK:
        raise typed(status.name, call)
    return values[0] if len(values) == 1 else values


def typed(status: str, call: str) -> EngineError:
    """The error for a status by its name in the driver's header."""
    if status in STICKY:
        return DeviceLost(f"{call}: {status}: the device's context is unusable; restart the process")
    if status == "CUDA_ERROR_OUT_OF_MEMORY":
        return OutOfMemory(f"{call}: {status}")
    return RunError(f"{call}: {status}")


def index_of(wanted: str) -> int:
    """Index of the visible device whose UUID is, or begins with, `wanted` ("GPU-...").

    Raises `LoadError` listing the devices when none or several fit.
    """
    known = [device_uuid(index) for index in range(check(driver.cuDeviceGetCount(), "cuDeviceGetCount"))]
    fitting = [index for index, name in enumerate(known) if name.startswith(wanted)]
    if len(fitting) != 1:
        raise LoadError(f"device: {wanted}: fits {len(fitting)} devices; visible are {', '.join(known) or 'none'}")
    return fitting[0]


def device_uuid(index: int) -> str:
    """UUID of a visible device as nvidia-smi prints it, such as GPU-8f6c...."""
    device = check(driver.cuDeviceGet(index), "cuDeviceGet")
    return f"GPU-{uuid.UUID(bytes=bytes(check(driver.cuDeviceGetUuid(device), 'cuDeviceGetUuid').bytes))}"


def version() -> str:
    """CUDA version that the driver supports, such as 13.0."""
    number = int(check(driver.cuDriverGetVersion(), "cuDriverGetVersion"))
    return f"{number // 1000}.{number % 1000 // 10}"


def register_pages(address: int, nbytes: int) -> None:
    """Page-lock memory that the process owns, for every context of the process. Raises as `check` does."""
    check(driver.cuMemHostRegister(address, nbytes, driver.CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister")


def unregister_pages(address: int) -> None:
    """Undo `register_pages`; before the memory is freed."""
    check(driver.cuMemHostUnregister(address), "cuMemHostUnregister")


def context_handle() -> Any:
    """The context that is current on this thread."""
    return check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")


def set_context(handle: Any) -> None:
    """Make a context current on this thread for good; None leaves it without one."""
    check(driver.cuCtxSetCurrent(driver.CUcontext(0) if handle is None else handle), "cuCtxSetCurrent")


class Graph:
    """Work recorded once from a stream and launched with one call. Shapes, addresses and sizes are baked in."""

    __slots__ = ("_exec", "_stream", "nodes")

    def __init__(self, stream: int, enqueue: Callable[[], None]) -> None:
        """Record what `enqueue` puts on the stream; nothing of it runs. Other threads may use the device meanwhile.

        `enqueue` must have run eagerly once before, since first-time set-up cannot be recorded. Raises
        `CaptureRefused` when it calls something that cannot be recorded or fails in whichever library's way,
        `OutOfMemory`, `DeviceLost`.
        """
        self._stream = driver.CUstream(stream)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self._stream, mode), "cuStreamBeginCapture")
        refusal: Exception | None = None
        try:
            enqueue()
        except Exception as error:
            refusal = error
        finally:
            # Without this the stream stays in capture mode and every later call on it fails.
            status, graph = driver.cuStreamEndCapture(self._stream)
        if refusal is not None or status != _OK:
            if status == _OK:
                check(driver.cuGraphDestroy(graph), "cuGraphDestroy")
            why = refusal or typed(status.name, "cuStreamEndCapture")
            if isinstance(why, OutOfMemory | DeviceLost):
                raise why
            raise CaptureRefused(f"capture: {why}") from refusal
        try:
            # A refused enqueue leaves an empty graph that "succeeds" and hands out old results: the caller checks.
            self.nodes = int(check(driver.cuGraphGetNodes(graph), "cuGraphGetNodes")[1])
            self._exec = check(driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        finally:
            check(driver.cuGraphDestroy(graph), "cuGraphDestroy")
        check(driver.cuGraphUpload(self._exec, self._stream), "cuGraphUpload")

    def launch(self) -> None:
        """Enqueue one replay on the stream. The interpreter lock is released inside. Raises as `check` does."""
        (status,) = driver.cuGraphLaunch(self._exec, self._stream)
        if status != _OK:
            raise typed(status.name, "cuGraphLaunch")

    def close(self) -> None:
        """Destroy it. The stream must be idle. Not to be launched afterwards."""
        check(driver.cuGraphExecDestroy(self._exec), "cuGraphExecDestroy")
