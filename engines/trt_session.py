"""One lane on the GPU: a stream, a context per bucket, packed pinned slots, and a CUDA graph per bucket and slot.

A batch is one graph launch where it fits a bucket: copy in, kernels, copy out. The next batch is packed into the other
slot while the device works. Nothing is allocated after `__init__`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines import placement
from engines.arena import SLOTS, Arena, Slot
from engines.base import Features, Scores
from engines.buckets import Bucket, Grid, Run
from engines.cuda import CudaError, Device
from engines.errors import DeviceLost, EngineError, RunError
from engines.hub import Hubs, Lane
from engines.inputs import Inputs
from engines.trt_bucket import BucketContext, GraphBudget, Place


@dataclass(frozen=True, slots=True)
class Options:
    """How sessions run. See `TrtEngine` for the meaning."""

    graphs: bool
    max_graphs: int
    max_graph_bytes: int
    blocking: bool
    hubs: Hubs


@dataclass(slots=True)
class _Pending:
    """A submitted batch: its scores are in the slots, or already in `scores` where a slot was needed again."""

    turn: int
    parts: list[tuple[Slot, Run]]
    scores: Scores | None


class TrtSession:
    """Opened by `TrtEngine.open_session`. Works on any thread; cheapest on one inside `on_thread`."""

    depth: int = SLOTS

    def __init__(
        self,
        trt: Any,
        engine: Any,
        log: Any,
        device: Device,
        inputs: Inputs,
        offered: Sequence[Bucket],
        output: str,
        options: Options,
    ) -> None:
        """With the device's context current and its `opening` held. Raises `OutOfMemory`, `RunError`, `DeviceLost`."""
        self._device = device
        self._hubs = options.hubs
        self._inputs = inputs
        self._closed = False
        self._turn = 0
        self._pending: deque[_Pending] = deque()
        self._finished: _Pending | None = None
        """The pending batch that `ready` has seen the end of."""
        self._contexts: list[BucketContext] = []
        self._arena: Arena | None = None
        self._scratch: Any = None
        self._stream: Any = None
        self._events: list[Any] = []
        self.buckets = tuple(offered)
        """Buckets that this session has memory for."""
        try:
            self._stream = device.stream()
            self._events = [device.event(blocking=options.blocking) for _ in range(SLOTS)]
            rows = {tensor.name: tuple(tensor.shape) for tensor in inputs.tensors}
            dtypes = {tensor.name: np.dtype(tensor.dtype) for tensor in inputs.tensors}
            self._arena = arena = Arena(device, offered, dtypes, rows)
            self._slots = arena.slots
            scratch = max(engine.get_device_memory_size_for_profile_v2(bucket.profile) for bucket in offered)
            self._scratch = device.memory(scratch)
            self.device_bytes = arena.device_bytes + scratch
            """Device memory of this session's own, without TensorRT's state of each context."""
            place = Place(trt, engine, log, device, self._stream, arena.address, self._scratch, max(scratch, 1), output)
            budget = GraphBudget(options.max_graphs if options.graphs else 0, options.max_graph_bytes)
            costs = []
            sample = inputs.sample(min(max(bucket.batch for bucket in offered), inputs.max_batch))
            for bucket, layout, slots in zip(offered, arena.layouts, arena.slots, strict=True):
                context = BucketContext(place, bucket, layout, slots)
                self._contexts.append(context)
                costs.append(context.warm(self._events, budget, _first(sample, bucket.batch)))
            sequences = [name for name, row in rows.items() if any(b.shapes[name][1:] != row for b in offered)]
            self._grid = Grid(offered, costs, sequences, inputs.max_batch)
            # Most batches are one run in one bucket: found by their number of rows alone.
            self._whole = [self._direct(self._grid.whole(n)) for n in range(inputs.max_batch + 1)]
            self.costs_us = tuple(costs)
            """Measured microseconds of a run of each bucket, launch to wake-up."""
            self._warm([_first(sample, bucket.batch) for bucket in offered])
            # After a large release the C library tidies up within a later allocation: the driver's, in the wait for the
            # first batch, 0.3 ms long. So the sample goes before the last of the warm-up.
            del sample
            self._warm([inputs.sample(1)])
        except BaseException:
            self._release()
            raise

    @property
    def graphs(self) -> int:
        """CUDA graphs captured; buckets without one run eagerly."""
        return sum(len(context.graphs) for context in self._contexts)

    @contextmanager
    def on_thread(self) -> Iterator[None]:
        """For a thread that serves this session: its context current, its core next to the device."""
        placement.bind_thread(self._device.node)
        with self._device.bound():
            yield

    def serve(self, name: str) -> Lane:
        """Hand the session to one of the threads that serve the engine's lanes."""
        return self._hubs.open(self, name)

    def ready(self) -> bool:
        """Whether `collect` would return, or raise, without waiting."""
        if not self._pending:
            return False
        batch = self._pending[0]
        try:
            if not self._events[batch.turn].query():
                return False
        except CudaError:
            return True  # a sticky error, which `collect` sees too and gives its name
        self._finished = batch
        return True

    def submit(self, features: Features) -> None:
        if self._device.is_usable:
            self._submit(features)
        else:
            with self._device.current():
                self._submit(features)

    def collect(self) -> Scores:
        if self._device.is_usable:
            return self._collect()
        with self._device.current():
            return self._collect()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._device.opening, self._device.current():
                self._release()

    def _submit(self, features: Features) -> None:
        if self._closed:
            raise RunError("the session is closed; open another one")
        if self._device.lost is not None:
            raise DeviceLost(self._device.lost)
        if len(self._pending) >= SLOTS:
            raise RunError(f"{SLOTS} batches are pending, which is this session's depth; collect one first")
        n = self._inputs.check(features)
        turn = self._turn
        direct = self._whole[n]
        try:
            if direct is not None:
                run, slots, launches = direct
                slot = slots[turn]
                slot.fill(features, run)
                launches[turn]()
                self._events[turn].record(self._stream)
                batch = _Pending(turn, [(slot, run)], None)
            else:
                batch = self._submit_parts(features, n, turn)
        except (CudaError, EngineError) as error:
            raise self._abandon(error, f"submit of {n} rows") from error
        self._turn = turn + 1 if turn + 1 < SLOTS else 0
        self._pending.append(batch)

    def _warm(self, batches: list[Features]) -> None:
        """Run batches as they will come, by `submit` and `collect` and in every slot."""
        for batch in batches:
            for _ in range(SLOTS):
                self._submit(batch)
                self._collect()

    def _submit_parts(self, features: Features, n: int, turn: int) -> _Pending:
        """Launch a batch in the runs that the grid cuts it into."""
        runs = self._grid.runs(features, n)
        batch = _Pending(turn, [], None if len(runs) == 1 else np.empty(n, np.float32))
        for run in runs:
            slot = self._slots[run.bucket][turn]
            if any(used is slot for used, _ in batch.parts):
                self._events[turn].synchronize()
                self._harvest(batch)
            slot.fill(features, run)
            self._contexts[run.bucket].launches[turn]()
            self._events[turn].record(self._stream)
            batch.parts.append((slot, run))
        return batch

    def _direct(self, run: Run | None) -> tuple[Run, tuple[Slot, ...], list[Callable[[], None]]] | None:
        return None if run is None else (run, self._slots[run.bucket], self._contexts[run.bucket].launches)

    def _collect(self) -> Scores:
        if not self._pending:
            raise RunError("no batch is pending; submit one first")
        batch = self._pending[0]
        try:
            if self._finished is not batch:
                self._events[batch.turn].synchronize()
            if batch.scores is None:
                [(slot, run)] = batch.parts
                return slot.scores[: run.count].copy()
            self._harvest(batch)
            return batch.scores
        except CudaError as error:
            raise self._device.typed(error, "collect") from error
        finally:
            # Only now: a submit that sees it gone takes over its slots.
            self._pending.popleft()

    def _harvest(self, batch: _Pending) -> None:
        """Take the finished runs' scores to where their rows belong, so that their slots are free."""
        assert batch.scores is not None
        for slot, run in batch.parts:
            batch.scores[run.rows] = slot.scores[: run.count]
        batch.parts.clear()

    def _abandon(self, error: Exception, what: str) -> EngineError:
        """Leave no run of a failed batch behind, and say what kind of failure it was."""
        typed = error if isinstance(error, EngineError) else self._device.typed(error, what)
        if isinstance(typed, DeviceLost):
            self._device.lost = self._device.lost or str(typed)
            return typed
        try:
            self._stream.synchronize()
        except CudaError as sticky:
            return self._device.typed(sticky, what)
        return typed

    def _release(self) -> None:
        """Reverse of opening: graphs, contexts, memory, events, stream. On a lost device only references go."""
        if self._device.lost is None and self._stream is not None:
            with self._device.guard("close session"):
                self._stream.synchronize()
                for context in self._contexts:
                    context.close()
        self._pending.clear()
        self._finished = None
        self._whole = []
        self._slots = []
        self._contexts = []
        self._scratch = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._events = []
        self._stream = None


def _first(batch: Features, rows: int) -> Features:
    """At most so many rows."""
    return {name: tensor[:rows] for name, tensor in batch.items()}
