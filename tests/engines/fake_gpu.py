"""A GPU that is not there: pycuda, cuda-bindings and TensorRT in the few calls that the engine makes, on host memory.

Work is deferred: what is enqueued runs when its event or stream is waited for, and copies read memory at that moment,
so that a slot that is refilled too early gives wrong scores. Every call checks that the context is current on its
thread.
"""

import ctypes
import enum
import threading
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

MODULES = ("pycuda", "pycuda.driver", "cuda", "cuda.bindings", "cuda.bindings.driver", "tensorrt")
ENGINE_MODULES = ("cuda", "driver", "arena", "trt", "trt_bucket", "trt_session")
"""Modules of the package that bind the libraries when they are imported."""

Op = Callable[[], None]


class Error(Exception):
    pass


class OutOfMemoryError(Error):
    pass


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class Gpu:
    """State and faults of the one device. A fault is set by a test and stays until it is unset."""

    def __init__(self) -> None:
        self.total = 1 << 30
        self.used = 0
        self.objects = 0
        self.launched: list[str] = []
        self.refuse_capture = False
        self.refuse_in_capture = False
        self.refuse_launch = False
        self.refuse_enqueue = False
        self.empty_graphs = False
        self.graphs = 0
        self.graph_bytes = 0
        """Device memory that each graph takes."""
        self.sticky = False
        self.hung: set[Stream] = set()
        self.registered: dict[int, int] = {}
        """Address -> bytes of pages of the process that are locked."""
        self.local = threading.local()
        self.streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()

    @property
    def stack(self) -> list[object]:
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        found: list[object] = self.local.stack
        return found

    def check(self, *, pushed: bool = False) -> None:
        """Raise where the real thing would; pycuda creates and frees only with the context on its own stack."""
        bound = not pushed and getattr(self.local, "bound", None) is not None
        assert self.stack or bound, "a CUDA call on a thread without the context"
        if self.sticky:
            raise Error("an illegal memory access was encountered")


class Counted:
    """An object of the device: made and dropped only with the context current, and counted."""

    def __init__(self, gpu: Gpu) -> None:
        gpu.check(pushed=True)
        self.gpu = gpu
        gpu.objects += 1

    def __del__(self) -> None:
        if hasattr(self, "gpu") and self.gpu.stack:  # else it is leaked, as pycuda does, and the count shows it
            self.gpu.objects -= 1


class Stream(Counted):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.handle = id(self)
        self.queue: list[Op] = []
        self.capture: list[Op] | None = None
        gpu.streams[self.handle] = self

    def put(self, op: Op) -> None:
        self.gpu.check()
        if self.capture is not None and self.gpu.refuse_in_capture:
            raise Error("operation not permitted when stream is capturing")
        (self.queue if self.capture is None else self.capture).append(op)

    def run(self) -> None:
        self.gpu.check()
        assert self.capture is None, "waited for while capturing"
        ops, self.queue = self.queue, []
        for op in ops:
            op()

    synchronize = run

    def is_done(self) -> bool:
        self.gpu.check()
        return not self.queue


class Event(Counted):
    stream: Stream | None = None
    asked = False

    def record(self, stream: Stream) -> None:
        self.gpu.check()
        self.stream = stream

    def query(self) -> bool:
        """Done when asked for the second time, unless the device hangs."""
        self.gpu.check()
        assert self.stream is not None
        self.asked = not self.asked
        if self.asked or self.stream in self.gpu.hung:
            return False
        self.stream.run()
        return True

    def synchronize(self) -> None:
        assert self.stream is not None
        self.stream.run()


class Memory(Counted):
    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        gpu.check(pushed=True)
        if gpu.used + nbytes > gpu.total:
            raise OutOfMemoryError("out of memory")
        super().__init__(gpu)
        self.block = np.full(nbytes, 0xCD, np.uint8)
        gpu.used += nbytes

    def __int__(self) -> int:
        return int(self.block.ctypes.data)

    def __del__(self) -> None:
        if hasattr(self, "block") and self.gpu.stack:
            self.gpu.used -= self.block.nbytes
        super().__del__()


class Context:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def push(self) -> None:
        self.gpu.stack.append(self)


def modules(gpu: Gpu) -> dict[str, types.ModuleType]:
    """What to put into `sys.modules`, every module bound to this device."""
    from tests.engines import fake_tensorrt

    made = {name: types.ModuleType(name) for name in MODULES}
    _pycuda(gpu, made["pycuda.driver"])
    _bindings(gpu, made["cuda.bindings.driver"])
    fake_tensorrt.fill(gpu, made["tensorrt"])
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    return made


def _pycuda(gpu: Gpu, module: Any) -> None:
    class Device:
        count = staticmethod(lambda: 1)

        def __init__(self, index: int) -> None:
            assert index == 0

        name = staticmethod(lambda: "Fake")
        compute_capability = staticmethod(lambda: (9, 0))
        pci_bus_id = staticmethod(lambda: "0000:00:00.0")
        retain_primary_context = staticmethod(lambda: Context(gpu))

    def pagelocked_empty(nbytes: int, dtype: object, mem_flags: int = 0) -> np.ndarray[Any, Any]:
        gpu.check(pushed=True)
        return np.full(nbytes, 0xCD, np.uint8)

    def copy(target: int, source: int, nbytes: int, stream: Stream) -> None:
        stream.put(lambda: ctypes.memmove(target, source, nbytes) and None)

    module.Error, module.MemoryError = Error, OutOfMemoryError
    module.init = lambda: None
    module.Device = Device
    module.Context = types.SimpleNamespace(pop=lambda: gpu.stack.pop())
    module.Stream = lambda flags: Stream(gpu)
    module.Event = lambda flags: Event(gpu)
    module.event_flags = types.SimpleNamespace(DISABLE_TIMING=2, BLOCKING_SYNC=1)
    module.host_alloc_flags = types.SimpleNamespace(PORTABLE=1)
    module.mem_alloc = lambda nbytes: Memory(gpu, nbytes)
    module.mem_get_info = lambda: (gpu.total - gpu.used, gpu.total)
    module.pagelocked_empty = pagelocked_empty
    module.memcpy_htod_async = lambda to, host, stream: copy(to, host.ctypes.data, host.nbytes, stream)
    module.memcpy_dtoh_async = lambda host, at, stream: copy(host.ctypes.data, at, host.nbytes, stream)


def _bindings(gpu: Gpu, module: Any) -> None:
    ok, refused = Status.CUDA_SUCCESS, Status.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

    def begin(stream: Stream, mode: object) -> tuple[Status]:
        gpu.check()
        stream.capture = []
        return (ok,)

    def end(stream: Stream) -> tuple[Status, list[Op] | None]:
        ops, stream.capture = stream.capture, None
        if gpu.refuse_capture:
            return refused, None
        return ok, [] if gpu.empty_graphs else ops

    def launch(ops: list[Op], stream: Stream) -> tuple[Status]:
        if gpu.sticky:
            return (Status.CUDA_ERROR_ILLEGAL_ADDRESS,)
        if gpu.refuse_launch:
            return (Status.CUDA_ERROR_OUT_OF_MEMORY,)
        for op in ops:
            stream.put(op)
        gpu.launched.append("graph")
        return (ok,)

    def instantiate(ops: list[Op], flags: int) -> tuple[Status, list[Op]]:
        gpu.graphs += 1
        gpu.used += gpu.graph_bytes
        return ok, list(ops)

    def destroy(ops: list[Op]) -> tuple[Status]:
        gpu.graphs -= 1
        gpu.used -= gpu.graph_bytes
        return (ok,)

    def register(address: int, nbytes: int, flags: int) -> tuple[Status]:
        gpu.registered[address] = nbytes
        return (ok,)

    def unregister(address: int) -> tuple[Status]:
        del gpu.registered[address]
        return (ok,)

    def bind(context: object) -> tuple[Status]:
        gpu.local.bound = context
        return (ok,)

    module.CUresult = Status
    module.CU_MEMHOSTREGISTER_PORTABLE = 1
    module.cuMemHostRegister, module.cuMemHostUnregister = register, unregister
    module.CUcontext = lambda handle: None
    module.cuCtxGetCurrent = lambda: (ok, gpu.stack[-1])
    module.cuCtxSetCurrent = bind
    module.CUstream = lambda handle: gpu.streams[handle]
    module.CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    module.cuStreamBeginCapture, module.cuStreamEndCapture = begin, end
    module.cuGraphGetNodes = lambda graph: (ok, graph, len(graph))
    module.cuGraphInstantiate, module.cuGraphExecDestroy = instantiate, destroy
    module.cuGraphUpload = lambda graph, stream: (ok,)
    module.cuGraphDestroy = lambda graph: (ok,)
    module.cuGraphLaunch = launch
    module.cuDeviceGetCount = lambda: (ok, 1)
    module.cuDeviceGet = lambda index: (ok, index)
    module.cuDeviceGetUuid = lambda device: (ok, types.SimpleNamespace(bytes=uuid.UUID(int=0xABC).bytes))
    module.cuDriverGetVersion = lambda: (ok, 13000)
