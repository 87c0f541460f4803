"""The builder's calls in order and every refusal of TensorRT as an error with its reason, on a TensorRT of the test's.

That the names and signatures are TensorRT's own is for `test_trt_api`; that plans run is for tests/gpu.
"""

import enum
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from engines import trt_module
from engines.build import compiler
from engines.errors import LoadError
from engines.plans import Precision, Profile

PROFILES = [Profile(batch=n, shapes={"x": [n, 4]}) for n in (1, 8)]
LAYERS = {"Layers": [{"Name": "gemm", "Inputs": [{"DataType": "Float"}], "Outputs": []}]}


class Severity(enum.Enum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO = Severity

    def log(self, severity: Severity, message: str) -> None:
        raise NotImplementedError


class FakeTensorrt:
    """Records what it is told; a test turns single answers into refusals."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {"profiles": []}
        self.parses = self.builds = self.loads = self.takes_profiles = True
        self.takes_cache = lambda data: True
        self.starts = self.runs = True
        self.log: Any = None

    def module(self) -> Any:
        module = SimpleNamespace()
        module.__version__ = "10.6.0"
        module.ILogger = ILogger
        module.Builder = self._builder
        module.OnnxParser = self._parser
        module.Runtime = self._runtime
        module.NetworkDefinitionCreationFlag = enum.IntEnum("Flag", {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1})
        module.BuilderFlag = enum.Enum("BuilderFlag", ["TF32"])
        module.MemoryPoolType = enum.Enum("MemoryPoolType", ["WORKSPACE"])
        module.ProfilingVerbosity = enum.Enum("ProfilingVerbosity", ["DETAILED"])
        module.LayerInformationFormat = enum.Enum("LayerInformationFormat", ["JSON"])
        return module

    def _builder(self, log: Any) -> Any:
        self.log = log
        if not self.starts:
            log.log(Severity.ERROR, "no CUDA device")
            raise TypeError("factory function returned nullptr")
        return SimpleNamespace(
            create_network=self._network,
            create_builder_config=self._config,
            create_optimization_profile=lambda: SimpleNamespace(set_shape=self._shape),
            build_serialized_network=self._build,
        )

    def _network(self, flags: int) -> Any:
        self.told["flags"] = flags
        self.network = SimpleNamespace(name="", get_output=lambda index: SimpleNamespace(name="score"))
        return self.network

    def _parser(self, network: Any, log: Any) -> Any:
        return SimpleNamespace(
            parse=lambda model: self.parses,
            num_errors=1,
            get_error=lambda index: SimpleNamespace(desc=lambda: "node Clop is unknown"),
        )

    def _config(self) -> Any:
        self.config = SimpleNamespace(
            set_memory_pool_limit=lambda pool, size: self.told.update(workspace=(pool.name, size)),
            set_flag=lambda flag: self.told.update(set=flag.name),
            clear_flag=lambda flag: self.told.update(cleared=flag.name),
            create_timing_cache=lambda data: SimpleNamespace(data=data, serialize=lambda: b"new" + data),
            set_timing_cache=lambda cache, mismatch: self.takes_cache(cache.data) and mismatch is False,
            add_optimization_profile=lambda profile: 0 if self.takes_profiles else -1,
        )
        return self.config

    def _shape(self, name: str, *shapes: list[int]) -> None:
        self.told["profiles"].append((name, *shapes))

    def _build(self, network: Any, config: Any) -> bytes | None:
        self.log.log(Severity.INFO, "chatter")
        if not self.builds:
            self.log.log(Severity.ERROR, "no tactic fits the workspace")
        return b"plan" if self.builds else None

    def _runtime(self, log: Any) -> Any:
        if not self.runs:
            log.log(Severity.ERROR, "no memory for a runtime")
            raise TypeError("factory function returned nullptr")
        look = SimpleNamespace(get_engine_information=lambda form: json.dumps(LAYERS))
        engine = SimpleNamespace(create_engine_inspector=lambda: look)
        return SimpleNamespace(deserialize_cuda_engine=lambda plan: engine if self.loads else None)


@pytest.fixture
def tensorrt(monkeypatch: pytest.MonkeyPatch) -> FakeTensorrt:
    fake = FakeTensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", fake.module())
    return fake


def build(precision: Precision = "fp32", timing_cache: bytes = b"") -> compiler.Compiled:
    return compiler.compile_plan(
        b"onnx", name="m", profiles=PROFILES, precision=precision, timing_cache=timing_cache, workspace_bytes=7
    )


def test_a_network_is_strongly_typed_by_name_with_one_fixed_shape_a_profile(tensorrt: FakeTensorrt) -> None:
    made = build()
    assert tensorrt.told["flags"] == 1 << 1
    assert tensorrt.told["profiles"] == [("x", [n, 4], [n, 4], [n, 4]) for n in (1, 8)]
    assert tensorrt.told["workspace"] == ("WORKSPACE", 7)
    assert tensorrt.config.profiling_verbosity.name == "DETAILED"
    assert tensorrt.network.name == "m"
    assert (made.plan, made.output, made.timing_cache) == (b"plan", "score", b"new")
    assert [layer.inputs for layer in made.layers] == [("fp32",)]
    assert json.loads(made.inspected) == LAYERS


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "tf32"])
def test_only_tf32_may_round_float32(tensorrt: FakeTensorrt, precision: Precision) -> None:
    build(precision)
    assert ("set" in tensorrt.told, "cleared" in tensorrt.told) == (precision == "tf32", precision != "tf32")


def test_a_timing_cache_of_another_machine_is_replaced_by_an_empty_one(tensorrt: FakeTensorrt) -> None:
    assert build(timing_cache=b"mine").timing_cache == b"newmine"
    tensorrt.takes_cache = lambda data: data == b""
    assert build(timing_cache=b"theirs").timing_cache == b"new"
    tensorrt.takes_cache = lambda data: False
    with pytest.raises(LoadError, match="accepts no timing cache"):
        build()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ("starts", "builder does not start: ERROR: no CUDA device"),
        ("parses", "does not take the ONNX: node Clop is unknown"),
        ("takes_profiles", "refuses the shapes"),
        ("builds", "could not build it: ERROR: no tactic fits the workspace"),
        ("runs", "runtime does not start: ERROR: no memory for a runtime; check the GPU and driver"),
        ("loads", "the plan just built does not load: TensorRT logged no reason"),
    ],
)
def test_what_tensorrt_refuses_is_an_error_with_its_reason(tensorrt: FakeTensorrt, refusal: str, said: str) -> None:
    setattr(tensorrt, refusal, False)
    with pytest.raises(LoadError, match=said):
        build()


def test_the_log_keeps_warnings_and_errors_only_and_not_without_end(tensorrt: FakeTensorrt) -> None:
    log = trt_module.log(tensorrt.module(), kept=2)
    for severity, message in (
        (Severity.ERROR, "a"),
        (Severity.INFO, "b"),
        (Severity.WARNING, "c"),
        (Severity.ERROR, "d"),
    ):
        log.log(severity, message)
    assert log.text() == "WARNING: c; ERROR: d"
    assert log.text() == "TensorRT logged no reason"


@pytest.mark.parametrize("name", trt_module.MODULES)
def test_either_module_name_will_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in trt_module.MODULES:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, name, found := ModuleType(name))
    assert trt_module.load() is found


def test_without_tensorrt_the_error_names_both_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in trt_module.MODULES:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LoadError, match=r"tensorrt: .*; tensorrt_bindings: .*pip install '\.\[gpu\]'"):
        trt_module.load()
