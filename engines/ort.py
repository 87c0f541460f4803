"""ONNX Runtime on the CPU: the primary model without a GPU, and the second choice beside one."""

import os
from pathlib import Path

import numpy as np
import onnxruntime

from engines.base import Features, Scores
from engines.errors import LoadError, OutOfMemory, RunError
from engines.inputs import Inputs
from engines.package import Package
from engines.session import CpuSession
from schemas.spec import ModelSpec

_DTYPES = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(int64)": "int64"}
_ERRORS_ONLY = 3


class OrtEngine:
    """One ONNX file of a package. Sessions share its weights; `run` leaves the GIL, so lanes overlap."""

    inline = False
    device_bytes = 0

    def __init__(
        self,
        package: Package,
        *,
        file: str = "model.onnx",
        name: str = "ort",
        threads: int = 1,
        max_batch: int = 1024,
    ) -> None:
        """Load, check against the spec and warm up. `threads` are those of one batch, the caller's included.

        Raises `LoadError` when the file is missing or broken, or its inputs and output are not those of the spec.
        """
        path = package.file(file)
        self.name = name
        self.version = package.version
        self.max_batch = max_batch
        self._inputs = Inputs(package.spec, max_batch)
        self._session: onnxruntime.InferenceSession | None = _load(path, threads)
        _check_inputs(path, self._session, package.spec)
        self._outputs = [_check_output(path, self._session)]
        try:
            # Both ends of the range, so that the arena has grown before the first real batch.
            for n in (1, max_batch):
                self._score(self._inputs.sample(n), n)
        except RunError as error:
            raise LoadError(f"{path}: warm-up failed: {error}; export the model again for this spec") from error

    def open_session(self) -> CpuSession:
        if self._session is None:
            raise LoadError(f"{self.name} {self.version}: the engine is closed; load it again")
        return CpuSession(self._inputs, self._score)

    def close(self) -> None:
        self._session = None

    def _score(self, features: Features, n: int) -> Scores:
        if self._session is None:
            raise RunError(f"{self.name} {self.version}: the engine is closed")
        try:
            [scores] = self._session.run(self._outputs, dict(features))
        except Exception as error:  # the runtime's exceptions have no base class of their own
            if "bad_alloc" in str(error) or "allocate memory" in str(error):
                raise OutOfMemory(f"{n} rows: {error}") from error
            raise RunError(f"{n} rows: {error}") from error
        if scores.size != n:
            raise RunError(f"the model returned {scores.size} scores for {n} rows; its output must be [n] or [n, 1]")
        flat: Scores = np.reshape(scores, n)
        return flat


def _load(path: Path, threads: int) -> onnxruntime.InferenceSession:
    if threads < 1:  # the runtime takes 0 for all cores
        raise LoadError(f"{path}: threads is {threads}; give 1 or more")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _ERRORS_ONLY
    # Batches differ in size: a memory plan for each size would be kept and never pay for itself.
    options.enable_mem_pattern = False
    # Spinning threads would take the core from the event loop between batches.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions have no base class of their own
        raise LoadError(f"{path}: not loadable: {error}; export the model again (opset 17)") from error


def _check_inputs(path: Path, session: onnxruntime.InferenceSession, spec: ModelSpec) -> None:
    found = {node.name: node for node in session.get_inputs()}
    expected = {tensor.name: tensor for tensor in spec.tensors}
    if found.keys() != expected.keys():
        raise LoadError(
            f"{path}: inputs are {sorted(found)}, the spec's tensors are {sorted(expected)}; "
            "rename one or the other so that they agree"
        )
    for name, node in found.items():
        tensor = expected[name]
        if _DTYPES.get(node.type) != tensor.dtype:
            raise LoadError(f"{path}: input {name} is {node.type}, the spec says {tensor.dtype}; change one of them")
        batch, *row = node.shape
        # A named axis takes any length; the batch axis must, a row axis may.
        if isinstance(batch, int):
            raise LoadError(f"{path}: input {name} has a fixed batch of {batch}; export it with a dynamic first axis")
        if len(row) != len(tensor.shape) or any(
            isinstance(length, int) and length != wanted for length, wanted in zip(row, tensor.shape, strict=True)
        ):
            raise LoadError(f"{path}: input {name} has rows {row}, the spec says {list(tensor.shape)}; change one")


def _check_output(path: Path, session: onnxruntime.InferenceSession) -> str:
    outputs = session.get_outputs()
    chosen = [node for node in outputs if node.name == "score"] or outputs
    if len(chosen) != 1:
        names = [node.name for node in outputs]
        raise LoadError(f"{path}: outputs are {names}, none is 'score'; export one output named 'score'")
    [node] = chosen
    if node.type != "tensor(float)" or len(node.shape) not in (1, 2) or node.shape[1:] not in ([], [1]):
        raise LoadError(
            f"{path}: output {node.name} is {node.type} {node.shape}; export float32 of shape [n] or [n, 1]"
        )
    return str(node.name)
