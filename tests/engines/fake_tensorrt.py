"""TensorRT for `fake_gpu`: a plan is the path of an ONNX file, run by onnxruntime at exactly the bucket's shape."""

import ctypes
import types
from typing import Any

import numpy as np
import onnxruntime

from tests.engines.fake_gpu import Counted, Gpu


class TrtContext(Counted):
    def __init__(self, gpu: Gpu, engine: "TrtEngine") -> None:
        super().__init__(gpu)
        self.engine = engine
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        return 0 <= profile < self.engine.profiles

    def set_device_memory(self, address: int, nbytes: int) -> None:
        assert address and nbytes >= self.engine.scratch

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address % 16 == 0

    def infer_shapes(self) -> list[str]:
        return sorted(self.engine.inputs.keys() - self.shapes.keys())

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (next(iter(self.shapes.values()))[0],)

    def execute_async_v3(self, stream: int) -> bool:
        if self.gpu.refuse_enqueue:
            return False
        self.gpu.streams[stream].put(self.compute)
        return True

    def compute(self) -> None:
        feeds = {}
        for name, dtype in self.engine.inputs.items():
            feeds[name] = np.empty(self.shapes[name], dtype)
            ctypes.memmove(feeds[name].ctypes.data, self.addresses[name], feeds[name].nbytes)
        [scores] = self.engine.session.run(["score"], feeds)
        ctypes.memmove(self.addresses["score"], np.ascontiguousarray(scores).ctypes.data, scores.nbytes)
        self.gpu.launched.append(str(next(iter(self.shapes.values()))[0]))


class TrtEngine(Counted):
    scratch = 4096
    profiles = 100

    def __init__(self, gpu: Gpu, path: str) -> None:
        super().__init__(gpu)
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        types_ = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}
        self.inputs = {node.name: np.dtype(types_[node.type]) for node in self.session.get_inputs()}
        self.names = [*self.inputs, "score"]
        self.num_io_tensors = len(self.names)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> str:
        return "INPUT" if name in self.inputs else "OUTPUT"

    def get_tensor_location(self, name: str) -> str:
        return "DEVICE"

    def get_tensor_dtype(self, name: str) -> Any:
        kinds = {"float32": "FLOAT", "int32": "INT32", "int64": "INT64"}
        return types.SimpleNamespace(name=kinds[str(self.inputs.get(name, np.dtype("float32")))])

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return self.scratch

    def create_execution_context(self, strategy: object) -> TrtContext:
        return TrtContext(self.gpu, self)


def fill(gpu: Gpu, module: Any) -> None:
    """Make the module TensorRT, bound to this device."""

    class Logger:
        INTERNAL_ERROR, ERROR, WARNING = "INTERNAL_ERROR", "ERROR", "WARNING"

    class Runtime:
        def __init__(self, log: object) -> None:
            gpu.check()

        def deserialize_cuda_engine(self, plan: bytes) -> TrtEngine | None:
            return TrtEngine(gpu, plan.decode()) if plan.endswith(b".onnx") else None

    module.__version__ = "10.6.0"
    module.ILogger, module.Runtime = Logger, Runtime
    module.TensorIOMode = types.SimpleNamespace(INPUT="INPUT")
    module.TensorLocation = types.SimpleNamespace(DEVICE="DEVICE")
    module.ExecutionContextAllocationStrategy = types.SimpleNamespace(USER_MANAGED=2)
