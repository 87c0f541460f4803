"""TensorRT engine: a plan's weights on one GPU, and the sessions that share them."""

import logging
import traceback
from typing import Any, Final, Literal

import numpy as np

from engines import cuda, plans, trt_module
from engines.arena import SLOTS
from engines.buckets import Bucket
from engines.errors import LoadError, OutOfMemory, RunError
from engines.hub import Hubs
from engines.inputs import Inputs
from engines.package import Package
from engines.plans import PlanFile, Precision
from engines.trt_session import Options, TrtSession
from schemas.spec import TensorSpec

log = logging.getLogger("scorelane.engines.trt")

BYTES_PER_THREAD: Final = 512 << 10
"""Measured on an H200's host: a thread fills pinned memory at 10 GB/s and needs 15 us a batch besides. So one thread is
best for small batches (two fight for the interpreter's lock), several for those of which the copy takes most."""
MAX_LANE_THREADS: Final = 4

_DTYPES: Final = {"FLOAT": np.dtype(np.float32), "INT32": np.dtype(np.int32), "INT64": np.dtype(np.int64)}


class TrtEngine:
    """One plan of a package on one GPU. Sessions share its weights; each has its own stream, contexts and memory."""

    name: Final = "trt"
    inline = False

    def __init__(
        self,
        package: Package,
        plan: PlanFile | None = None,
        *,
        device: int | str = 0,
        precision: Precision | None = None,
        accepted: bool = True,
        max_batch: int = 1024,
        graphs: bool = True,
        max_graphs: int = 64,
        max_graph_bytes: int = 256 << 20,
        wait: Literal["block", "spin"] = "block",
        lane_threads: int | None = None,
    ) -> None:
        """Load `plan`, or the one that `plans.choose` finds for this TensorRT build, device and precision.

        Buckets that no batch of `max_batch` rows needs are not opened; a batch beyond the largest takes several
        launches. Up to `max_graphs` CUDA graphs a session, taking up to `max_graph_bytes` of device memory, are
        captured; other buckets run eagerly. With `wait="spin"` a thread inside `collect` burns a core to save the
        wake-up from an interrupt. `lane_threads` serve all sessions that are run through `engines.runner.serve`; by
        default one, and one more for each `BYTES_PER_THREAD` of a full batch. Raises `LoadError` (no plan for this
        build and compute capability, a damaged one, one for another model) and `OutOfMemory`.
        """
        trt = trt_module.load()
        self._device = cuda.open_device(device)
        if plan is None:
            plan = plans.choose(
                package.path,
                tensorrt=trt_module.build_version(trt),
                compute_capability=self._device.compute_capability,
                precision=precision,
                accepted=accepted,
                onnx_sha256=package.manifest.files.get("model.onnx"),
            )
        self.version = package.version
        self.plan = plan
        self._spec = package.spec
        tensors = package.spec.tensors
        self._buckets = _buckets(plan, tensors, max_batch)
        self.max_batch = max_batch
        self.lengths = sorted({bucket.length for bucket in self._buckets if bucket.length})
        """Sequence lengths of the buckets."""
        hubs = Hubs(f"trt-{package.name}", lane_threads or _lane_threads(tensors, self.max_batch))
        self._options = Options(graphs, max_graphs, max_graph_bytes, blocking=wait == "block", hubs=hubs)
        data = plan.read()
        try:
            with self._device.opening, self._device.current(), self._device.guard(f"load {plan.path}"):
                before = self._device.free_bytes()
                self._log: Any = trt_module.log(trt)
                self._runtime: Any = trt_module.start_runtime(trt, self._log)
                self._engine: Any = self._runtime.deserialize_cuda_engine(data)
                if self._engine is None:
                    raise LoadError(
                        f"{plan.path}: TensorRT {trt_module.build_version(trt)} on compute capability "
                        f"{self._device.compute_capability} refuses the plan: {self._log.text()}; build it again on "
                        f"this machine with `scorelane engine build {package.path}`"
                    )
                _check_tensors(trt, plan, self._engine, tensors)
                self.device_bytes = max(before - self._device.free_bytes(), len(data))
                """Device memory of the weights, as far as the driver's pages show it."""
        except BaseException as error:
            _forget(error)
            self.close()
            raise

    def open_session(self, length: int | None = None) -> TrtSession:
        """A warm session: every bucket has run, its graphs are captured and agree with the eager run.

        With a `length`, one of `lengths`, it has buckets of that alone: for rows that are not longer. Where memory does
        not suffice for all buckets the largest is given up, and again; batches that needed it are then run in several
        smaller ones. Raises `OutOfMemory` when not even one bucket fits, `LoadError`, `DeviceLost`.
        """
        engine = self._engine
        if engine is None:
            raise LoadError(f"{self.plan.path}: the engine is closed; load it again")
        trt, device, output = trt_module.load(), self._device, self.plan.record.output
        inputs = Inputs(self._spec, self.max_batch)
        offered = [bucket for bucket in self._buckets if length in (None, bucket.length)]
        wanted = len(offered)
        # The context stays current while a failed session is dropped: what is freed without one is leaked.
        with device.opening, device.current():
            while True:
                try:
                    with device.guard("open session"):
                        opened = TrtSession(trt, engine, self._log, device, inputs, offered, output, self._options)
                    break
                except OutOfMemory as error:
                    _forget(error)
                    smaller = without_largest(offered)
                    if not smaller:
                        raise OutOfMemory(f"{self.plan.path}: no bucket of the plan fits: {error}") from error
                    offered = smaller
                except RunError as error:
                    _forget(error)
                    raise LoadError(f"{self.plan.path}: no session: {error}; build the plan again") from error
        given_up = wanted - len(offered)
        if given_up:
            told = "%s: no device memory for the %d largest buckets, batches are cut up; use fewer lanes or free it"
            log.warning(told, self.plan.path, given_up)
        if self._options.graphs and opened.graphs < SLOTS * len(offered):
            told = "%s: some buckets run without a CUDA graph, which takes longer; build a plan with fewer buckets"
            log.warning(told, self.plan.path)
        return opened

    def close(self) -> None:
        """Unload the weights; a session left behind in a hang keeps them until it ends. Idempotent."""
        with self._device.current():
            self._engine = None
            self._runtime = None
            self._log = None


def _forget(error: BaseException | None) -> None:
    """Drop the locals of a failure's frames: they hold device memory, which must go while the context is current."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def without_largest(offered: list[Bucket]) -> list[Bucket]:
    """The buckets without the one of the most elements; [] when one is left. The full length keeps a bucket."""
    full = max(bucket.length for bucket in offered)
    keep = min((b for b in offered if b.length == full), key=lambda bucket: bucket.batch)
    rest = [bucket for bucket in offered if bucket is not keep]
    if not rest:
        return []
    drop = max(rest, key=lambda bucket: (bucket.batch * max(bucket.length, 1), bucket.batch))
    return [bucket for bucket in offered if bucket is not drop]


def _buckets(plan: PlanFile, tensors: tuple[TensorSpec, ...], max_batch: int) -> list[Bucket]:
    """The plan's profiles as buckets, those left out that no batch of up to `max_batch` rows needs.

    Raises `LoadError` where the profiles do not fit the spec.
    """
    rows = {tensor.name: tuple(tensor.shape) for tensor in tensors}
    found = []
    for index, profile in enumerate(plan.record.profiles):
        shapes = {name: tuple(shape) for name, shape in profile.shapes.items()}
        for name, row in rows.items():
            shape = shapes.get(name, ())
            # Axis 1 may be cut to the bucket's sequence length; everything else is the spec's.
            if len(shape) != 1 + len(row) or shape[0] != profile.batch or not _fits(shape[1:], row, profile.sequence):
                raise LoadError(
                    f"{plan.path}: profile {index}: {name} is {list(shape)}, the spec's rows are {list(row)}"
                )
        if shapes.keys() != rows.keys():
            raise LoadError(f"{plan.path}: profile {index} has {sorted(shapes)}, the spec has {sorted(rows)}")
        found.append(Bucket(index, profile.batch, profile.sequence or 0, {name: shapes[name] for name in rows}))
    largest = min((b.batch for b in found if b.batch >= max_batch), default=max(b.batch for b in found))
    found = [bucket for bucket in found if bucket.batch <= largest]
    full = max(bucket.length for bucket in found)
    if not any(bucket.length == full and all(bucket.shapes[n][1:] == rows[n] for n in rows) for bucket in found):
        raise LoadError(
            f"{plan.path}: no profile takes the spec's full rows {rows}; build the plan again for this spec"
        )
    return found


def _lane_threads(tensors: tuple[TensorSpec, ...], max_batch: int) -> int:
    row_bytes = sum(np.zeros(tensor.shape, tensor.dtype).nbytes for tensor in tensors)
    return min(1 + max_batch * row_bytes // BYTES_PER_THREAD, MAX_LANE_THREADS)


def _fits(found: tuple[int, ...], row: tuple[int, ...], sequence: int | None) -> bool:
    return found == row or (sequence is not None and found == (sequence, *row[1:]) and sequence < row[0])


def _check_tensors(trt: Any, plan: PlanFile, engine: Any, tensors: tuple[TensorSpec, ...]) -> None:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = {name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT}
    expected = {tensor.name: np.dtype(tensor.dtype) for tensor in tensors} | {plan.record.output: np.dtype(np.float32)}
    remedy = "build the plan again for this model"
    if set(names) != expected.keys() or plan.record.output in inputs:
        raise LoadError(f"{plan.path}: tensors are {sorted(names)}, the model has {sorted(expected)}; {remedy}")
    for name, dtype in expected.items():
        found = engine.get_tensor_dtype(name).name
        if _DTYPES.get(found) != dtype:
            raise LoadError(f"{plan.path}: {name} is {found}, the model has {dtype}; {remedy}")
        if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
            raise LoadError(f"{plan.path}: {name} lives on the host; {remedy}")
