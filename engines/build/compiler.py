"""One ONNX graph through TensorRT's builder: the only file of the build that calls it.

It keeps to what 10.6 and 11 both have, takes enums by name, and always builds strongly typed, so that the graph's own
types decide the precision (in 11 there is no other way, and the flag is ignored).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines import trt_module
from engines.build import inspector
from engines.errors import LoadError
from engines.plans import Precision, Profile

WORKSPACE_BYTES = 1 << 30
OPTIMIZATION_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Compiled:
    plan: bytes
    timing_cache: bytes
    layers: list[inspector.Layer]
    """Layers of all profiles."""
    inspected: str
    """The inspector's JSON."""
    output: str
    build_s: float


def compile_plan(
    model: bytes,
    *,
    name: str,
    profiles: Sequence[Profile],
    precision: Precision,
    timing_cache: bytes = b"",
    workspace_bytes: int = WORKSPACE_BYTES,
    optimization_level: int = OPTIMIZATION_LEVEL,
) -> Compiled:
    """Build a serialised ONNX model for the current device, with one optimisation profile for each of `profiles`.

    `precision` decides only whether float32 GEMMs may round to TF32; everything else is in the graph. `timing_cache` is
    what an earlier build on this TensorRT and GPU returned. Raises `LoadError` with what TensorRT logged.
    """
    trt = trt_module.load()
    log = trt_module.log(trt)
    started = time.perf_counter()
    try:
        builder = trt.Builder(log)
    except (TypeError, RuntimeError) as error:
        raise LoadError(f"{name}: TensorRT's builder does not start: {log.text()}; check the GPU and driver") from error
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    network.name = name
    parser = trt.OnnxParser(network, log)
    if not parser.parse(model):
        errors = "; ".join(str(parser.get_error(index).desc()) for index in range(parser.num_errors))
        raise LoadError(f"{name}: TensorRT does not take the ONNX: {errors}; export it with opset 17 to 20")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_bytes)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.builder_optimization_level = optimization_level
    (config.set_flag if precision == "tf32" else config.clear_flag)(trt.BuilderFlag.TF32)
    cache = _attach_cache(config, timing_cache)
    for profile in profiles:
        _add_profile(name, builder, config, profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise LoadError(f"{name}: TensorRT could not build it: {log.text()}; a larger workspace may help")
    build_s = time.perf_counter() - started
    inspected = _inspect(trt, log, plan)
    return Compiled(
        plan=bytes(plan),
        timing_cache=bytes(cache.serialize()),
        layers=inspector.parse(inspected),
        inspected=inspected,
        output=str(network.get_output(0).name),
        build_s=build_s,
    )


def _attach_cache(config: Any, timing_cache: bytes) -> Any:
    """The timing cache in use. One of another device or build is refused by TensorRT and replaced by an empty one."""
    for data in (timing_cache, b""):
        cache = config.create_timing_cache(data)
        if cache is not None and config.set_timing_cache(cache, False):
            return cache
    raise LoadError("TensorRT accepts no timing cache, not even an empty one; check the GPU and driver")


def _add_profile(name: str, builder: Any, config: Any, profile: Profile) -> None:
    shapes = builder.create_optimization_profile()
    for tensor, shape in profile.shapes.items():
        shapes.set_shape(tensor, shape, shape, shape)
    if config.add_optimization_profile(shapes) < 0:
        raise LoadError(f"{name}: TensorRT refuses the shapes {profile.shapes}; they must fit the model's inputs")


def _inspect(trt: Any, log: Any, plan: Any) -> str:
    """The inspector's JSON with the layers of all profiles.

    Without an execution context: with one, 10.6 crashed or returned nothing at random. The shape of every profile is
    fixed, so types are known all the same.
    """
    runtime = trt_module.start_runtime(trt, log)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise LoadError(f"the plan just built does not load: {log.text()}; check the GPU and driver")
    look = engine.create_engine_inspector()
    return str(look.get_engine_information(trt.LayerInformationFormat.JSON))
