"""One bucket of one session: its execution context, shapes and addresses set for good, and how a run is launched."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from engines.arena import Slot
from engines.base import Features, Scores, batch_size
from engines.buckets import Bucket, Layout, Run
from engines.cuda import Device
from engines.driver import CaptureRefused, Graph
from engines.errors import OutOfMemory, RunError

WARM_UP: Final = 3
"""Runs of every bucket and slot before the session is handed out."""


@dataclass(slots=True)
class GraphBudget:
    """How many graphs a session may still capture, and how much device memory they may still take."""

    count: int
    nbytes: int

    @property
    def left(self) -> bool:
        return self.count > 0 and self.nbytes > 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session's buckets run: engine, stream and the device memory that they share."""

    trt: Any
    engine: Any
    log: Any
    device: Device
    stream: Any
    address: int
    """Of the packed block."""
    scratch: Any
    scratch_bytes: int
    output: str

    def require(self, done: Any, call: str, *, memory: bool = False) -> None:
        """TensorRT says no by False or None; the reason is in its log. Raises `OutOfMemory` or `RunError`."""
        if not done:
            said = self.log.text()
            kind = OutOfMemory if memory or "out of memory" in said.lower() else RunError
            raise kind(f"{call}: {said}")


class BucketContext:
    """A context, confined to its session's stream. `launches[i]` enqueues one run from slot i: a graph, or eagerly."""

    def __init__(self, place: Place, bucket: Bucket, layout: Layout, slots: tuple[Slot, ...]) -> None:
        self._place = place
        self._layout = layout
        self._slots = slots
        self.graphs: list[Graph] = []
        self.launches: list[Callable[[], None]] = [partial(self._enqueue, slot) for slot in slots]
        self._context = place.engine.create_execution_context(place.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        require, address = place.require, place.address
        require(self._context is not None, "create_execution_context", memory=True)
        chosen = self._context.set_optimization_profile_async(bucket.profile, place.stream.handle)
        require(chosen, f"set_optimization_profile_async({bucket.profile})")
        # Contexts share one scratch block: they run on one stream, so never at the same time.
        self._context.set_device_memory(int(place.scratch), place.scratch_bytes)
        for name, shape in bucket.shapes.items():
            require(self._context.set_input_shape(name, shape), f"set_input_shape({name}, {shape})")
            require(self._context.set_tensor_address(name, address + layout.offsets[name]), f"address of {name}")
        output, at = place.output, address + layout.output_offset
        require(self._context.set_tensor_address(output, at), f"address of {output}")
        require(not self._context.infer_shapes(), f"infer_shapes for {dict(bucket.shapes)}")
        shape = tuple(self._context.get_tensor_shape(output))
        require(shape in ((bucket.batch,), (bucket.batch, 1)), f"output {output} is {shape}, not [{bucket.batch}]")

    def warm(self, events: list[Any], budget: GraphBudget, sample: Features) -> float:
        """Run every slot eagerly, capture it where the budget allows, keep the graph if it agrees with the eager run.

        Returns the microseconds of one run, launch to wake-up. Raises `OutOfMemory`, `RunError`, `DeviceLost`.
        """
        took: list[float] = []
        rows = Run(0, batch_size(sample), None)
        for turn, (slot, event) in enumerate(zip(self._slots, events, strict=True)):
            slot.fill(sample, rows)
            self._run(self.launches[turn], event)
            if budget.left:
                self._capture(turn, event, slot.scores.copy(), budget)
            took.extend(self._run(self.launches[turn], event) for _ in range(WARM_UP))
        return min(took)

    def close(self) -> None:
        """Destroy graphs and context. The stream must be idle. Idempotent."""
        graphs, self.graphs = self.graphs, []
        self.launches = []
        self._slots = ()
        for graph in graphs:
            graph.close()
        self._context = None

    def _enqueue(self, slot: Slot) -> None:
        place = self._place
        place.device.copy_in(place.address, slot.packed, place.stream)
        place.require(self._context.execute_async_v3(place.stream.handle), "execute_async_v3")
        place.device.copy_out(slot.output, place.address + self._layout.output_offset, place.stream)

    def _capture(self, turn: int, event: Any, expected: Scores, budget: GraphBudget) -> None:
        device = self._place.device
        before = device.free_bytes()
        try:
            graph = Graph(self._place.stream.handle, self.launches[turn])
        except CaptureRefused:
            return
        budget.count -= 1
        budget.nbytes -= max(before - device.free_bytes(), 0)
        self.graphs.append(graph)  # from here on it is closed with the context
        scores = self._slots[turn].scores
        scores.fill(np.nan)
        self._run(graph.launch, event)
        # Two copies and a kernel at least; an empty graph would hand out old scores for ever.
        if graph.nodes >= 3 and np.allclose(scores, expected, rtol=1e-4, atol=1e-6):
            self.launches[turn] = graph.launch
        else:
            self.graphs.pop().close()

    def _run(self, launch: Callable[[], None], event: Any) -> float:
        """One run, waited for. Microseconds."""
        start = time.perf_counter()
        launch()
        event.record(self._place.stream)
        event.synchronize()
        return (time.perf_counter() - start) * 1e6
