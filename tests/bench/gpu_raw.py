"""The loop to compare the TensorRT engine with: what anyone writes by hand for one fixed shape on one stream.

One packed copy in from pinned memory, the engine's kernels and the copy out in one CUDA graph; one launch and one wait
a batch, one thread, no checks, no queue, no second slot.
"""

import time
from functools import partial
from typing import Any

import numpy as np
import pycuda.driver as cuda
from cuda.bindings import driver

from engines.base import Features
from engines.plans import Profile

ALIGNMENT = 256


class RawLoop:
    """With the context current. `wait` is "spin" (cuStreamSynchronize) or "block" (an event that sleeps)."""

    def __init__(self, trt: Any, engine: Any, index: int, profile: Profile, output: str, wait: str) -> None:
        self.batch = profile.batch
        self.stream = cuda.Stream(1)
        self.context = engine.create_execution_context()
        assert self.context.set_optimization_profile_async(index, self.stream.handle)
        dtypes = {"FLOAT": np.float32, "INT32": np.int32, "INT64": np.int64}
        offsets, at = {}, 0
        for name, shape in profile.shapes.items():
            dtype = np.dtype(dtypes[engine.get_tensor_dtype(name).name])
            offsets[name] = (at, int(np.prod(shape)) * dtype.itemsize, dtype, shape)
            at += -(-offsets[name][1] // ALIGNMENT) * ALIGNMENT
        self.host = cuda.pagelocked_empty(at, np.uint8)
        self.host.fill(0)
        self.scores = cuda.pagelocked_empty(self.batch, np.float32)
        self.device = cuda.mem_alloc(at + 4 * self.batch)
        self.at = at
        self.views = {}
        for name, (offset, nbytes, dtype, shape) in offsets.items():
            self.views[name] = self.host[offset : offset + nbytes].view(dtype).reshape(shape)
            assert self.context.set_input_shape(name, tuple(shape))
            assert self.context.set_tensor_address(name, int(self.device) + offset)
        assert self.context.set_tensor_address(output, int(self.device) + at)
        start = time.perf_counter()
        self.enqueue()
        self.stream.synchronize()
        self.first_us = (time.perf_counter() - start) * 1e6
        """The first batch of a context that nothing has warmed."""
        stream = driver.CUstream(self.stream.handle)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        assert driver.cuStreamBeginCapture(stream, mode)[0] == 0
        self.enqueue()
        status, graph = driver.cuStreamEndCapture(stream)
        assert status == 0
        status, self.graph = driver.cuGraphInstantiate(graph, 0)
        assert status == 0
        self.handle = stream
        self.wait = self.stream.synchronize if wait == "spin" else partial(_block, _event(), self.stream)

    def enqueue(self) -> None:
        cuda.memcpy_htod_async(int(self.device), self.host, self.stream)
        assert self.context.execute_async_v3(self.stream.handle)
        cuda.memcpy_dtoh_async(self.scores, int(self.device) + self.at, self.stream)

    def run(self, features: Features | None) -> None:
        """One batch; without features whatever lies in the pinned memory is scored again."""
        if features is not None:
            for name, view in self.views.items():
                np.copyto(view, features[name])
        (status,) = driver.cuGraphLaunch(self.graph, self.handle)
        assert status == 0
        self.wait()


def _event() -> Any:
    return cuda.Event(cuda.event_flags.DISABLE_TIMING | cuda.event_flags.BLOCKING_SYNC)


def _block(event: Any, stream: Any) -> None:
    event.record(stream)
    event.synchronize()
