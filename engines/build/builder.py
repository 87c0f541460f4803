"""A model package -> a TensorRT plan in it, in one precision, for the GPU and TensorRT at hand."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from engines import plans, trt_module
from engines.build import calibration, columns, graph, inspector, quantize, recipe, shapes
from engines.build.calibration import Rowset
from engines.build.compiler import OPTIMIZATION_LEVEL, WORKSPACE_BYTES, Compiled, compile_plan
from engines.errors import LoadError
from engines.package import Package
from engines.plans import Device, PlanFile, PlanRecord, Precision, Profile

MODEL = "model.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to build. Sizes in bytes, batches in rows, lengths in sequence elements."""

    precision: Precision = "fp32"
    batches: tuple[int, ...] = ()
    """Batch buckets; empty takes those of the model's kind of event (`shapes.usual_batches`)."""
    lengths: tuple[int, ...] = ()
    """Sequence buckets shorter than the model's full length."""
    method: quantize.Method = "percentile"
    calibration_rows: int = 2048
    seed: int = 0
    workspace_bytes: int = WORKSPACE_BYTES
    optimization_level: int = OPTIMIZATION_LEVEL
    keep_inspection: bool = False
    """Leave the inspector's JSON beside the plan, as `.layers`."""


def build(package: Package, device: Device, options: Options, rows: Rowset | None = None) -> PlanFile:
    """Build the package's model for the current device and put the plan, not yet accepted, into the package.

    `device` describes the device that is current on this thread; `rows` are real rows, from which a set is drawn in
    equal shares over user activity (fp16 and int8 need them). Raises `LoadError` when anything is missing, refused by
    TensorRT, or built in another precision than asked.
    """
    source = package.file(MODEL)
    profiles = shapes.profiles(package.spec, options.batches or shapes.usual_batches(package.spec), options.lengths)
    drawn, shares = (None, {}) if rows is None else calibration.stratified(rows, options.calibration_rows, options.seed)
    made = prepare(source, package, options, profiles, drawn)
    trt_version = trt_module.build_version(trt_module.load())
    cache = package.path / "plans" / f"{trt_version}-sm{device.compute_capability.replace('.', '')}.timing"
    compiled = compile_plan(
        made.model.SerializeToString(),
        name=f"{package.name}-{package.version}",
        profiles=profiles,
        precision=options.precision,
        timing_cache=cache.read_bytes() if cache.exists() else b"",
        workspace_bytes=options.workspace_bytes,
        optimization_level=options.optimization_level,
    )
    shown = verify(compiled, made)
    record = PlanRecord(
        model=package.name,
        version=package.version,
        tensorrt=trt_version,
        device=device,
        precision=options.precision,
        profiles=profiles,
        output=compiled.output,
        recipe={
            **made.note,
            "shown": shown,
            "strata": shares,
            "seed": options.seed,
            "workspace_bytes": options.workspace_bytes,
            "optimization_level": options.optimization_level,
        },
        layers=inspector.count(inspector.by_profile(compiled.layers)[0]),
        onnx_sha256=plans.sha256(source.read_bytes()),
        timing_cache_sha256=plans.sha256(compiled.timing_cache),
        plan_sha256=plans.sha256(compiled.plan),
        plan_bytes=len(compiled.plan),
        build_s=round(compiled.build_s, 3),
        created_ms=time.time_ns() // 1_000_000,
    )
    written = plans.write(package.path, record, compiled.plan)
    plans.write_beside(cache, compiled.timing_cache)
    if options.keep_inspection:
        plans.write_beside(written.path.with_suffix(".layers"), compiled.inspected.encode())
    return written


def prepare(
    source: Path, package: Package, options: Options, profiles: list[Profile], rows: Rowset | None
) -> recipe.Recipe:
    """The graph TensorRT is to build: prepared, with free sequence axes where buckets need them, in the precision,
    without products that TensorRT runs better as sums."""
    try:
        model = graph.prepared(onnx.load(source))
    except Exception as error:  # protobuf's own exceptions have no common base with OSError
        raise LoadError(f"{source}: not readable as ONNX: {error}; export the model again") from error
    lengths = sorted({profile.sequence for profile in profiles if profile.sequence is not None})
    if lengths:
        full = shapes.sequences(package.spec)
        model = shapes.freed(model, full)
        if rows is None:
            raise LoadError(f"{source}: sequence buckets are checked on real rows; give --rows FILE")
        for length in lengths[:-1]:
            shapes.check_trimming(model, full, length, rows)
    made = recipe.apply(model, options.precision, rows, options.method)
    return replace(made, model=columns.summed(made.model))


def verify(compiled: Compiled, made: recipe.Recipe) -> dict[str, str]:
    """How each lowered GEMM shows its precision in the first profile; every profile is checked.

    Raises `LoadError` when a layer is not what was asked for.
    """
    profiles = inspector.by_profile(compiled.layers)
    verdicts = [inspector.check(layers, made.precision, made.gemms, made.kept) for layers in profiles]
    return verdicts[0]
