"""Build, compare and accept: what `scorelane engine` does, without the command line."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from engines import load, plans, trt_module
from engines.base import Engine
from engines.build import builder, gates, shapes, speed
from engines.build.builder import Options
from engines.build.calibration import Rowset
from engines.build.gates import Measured, Report
from engines.errors import LoadError
from engines.package import MANIFEST, Package, natural_key
from engines.plans import Device, PlanFile, Precision

BASELINE: Final = "fp32"
SERVING = "in service"
GATE_ROWS = 4096
GATE_SEED = 1
"""Another draw than the calibration's, so that on a long recording the gates see rows that it has not."""


def build(package: Package, options: Options, rows: Rowset | None, device: int | str = 0) -> PlanFile:
    """Build a candidate plan on this GPU. Raises what `builder.build` raises."""
    from engines import cuda

    with cuda.open_device(device).current():
        return builder.build(package, cuda.describe(device), options, rows)


def accept(
    package: Package,
    options: Options,
    rows: Rowset,
    device: int | str = 0,
    *,
    serving: Package | None = None,
    gate_rows: int = GATE_ROWS,
    sittings: int = speed.SITTINGS,
) -> tuple[PlanFile, Report]:
    """Build a plan and let it into service if it passes the gates.

    It is compared with the float32 plan of the same buckets, which is built first when there is none, and with the plan
    in service (of this package, or else of `serving`, the package that runs now). Raises `LoadError`.
    """
    here = _here(device)
    in_service = _in_service(package, serving, here)
    candidate = build(package, options, rows, device)
    known = _of(package, here)
    if BASELINE not in known or known[BASELINE].record.profiles != candidate.record.profiles:
        # Not judged: what was asked for is a verdict on the candidate, not a change of what is in service.
        known[BASELINE] = build(package, replace(options, precision=BASELINE), rows, device)
    compared = {BASELINE: known[BASELINE], options.precision: candidate}
    drawn = _drawn(rows, gate_rows)
    report = _reports(measure(package, compared, drawn, device, serving=in_service, sittings=sittings))[
        options.precision
    ]
    return plans.judge(candidate, accepted=report.passed, report=to_json(report)), report


def compare(
    package: Package,
    rows: Rowset,
    device: int | str = 0,
    *,
    serving: Package | None = None,
    gate_rows: int = GATE_ROWS,
    sittings: int = speed.SITTINGS,
) -> dict[str, Report]:
    """Precision -> report, for every plan this package has for the GPU and TensorRT at hand, measured side by side.

    Nothing is accepted or refused by it. Raises `LoadError` when there is no plan.
    """
    here = _here(device)
    known = _of(package, here)
    if not known:
        raise LoadError(
            f"{package.path}: no plan for TensorRT {here[0]} on compute capability {here[1].compute_capability};"
            f" build one with `scorelane engine build {package.path}`"
        )
    in_service = _in_service(package, serving, here)
    return _reports(measure(package, known, _drawn(rows, gate_rows), device, serving=in_service, sittings=sittings))


def measure(
    package: Package,
    compared: Mapping[Precision, PlanFile],
    rows: Rowset,
    device: int | str = 0,
    *,
    serving: tuple[Package, PlanFile] | None = None,
    sittings: int = speed.SITTINGS,
) -> dict[str, Measured]:
    """Parity and speed of these plans, and of the one in service when it is none of them, on the same rows."""
    buckets = sorted(set.intersection(*({p.batch for p in plan.record.profiles} for plan in compared.values())))
    if not buckets:
        raise LoadError(f"{package.path}: the plans have no batch size in common; build them with the same --batch")
    with ExitStack() as stack:
        engines: dict[str, tuple[Precision, Engine]] = {
            name: (name, stack.enter_context(_opened(package, plan, device, buckets[-1])))
            for name, plan in compared.items()
        }
        if serving is not None and serving[1] not in compared.values():
            precision = serving[1].record.precision
            engines[SERVING] = (precision, stack.enter_context(_opened(*serving, device, buckets[-1])))
        reference = load("ort", package, max_batch=buckets[-1])
        stack.callback(reference.close)
        lengths = {p.sequence for plan in compared.values() for p in plan.record.profiles if p.sequence is not None}
        return gates.evaluate(
            engines,
            reference,
            rows,
            buckets,
            sequences=shapes.sequences(package.spec),
            lengths=sorted(lengths),
            sittings=sittings,
        )


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain values, with the verdicts that are properties in Python."""
    plain: dict[str, Any] = msgspec.to_builtins(report, str_keys=True)
    plain["passed"] = report.passed
    plain["failed"] = [f"{check.gate} at {check.bucket}" for check in report.failed]
    return plain


def sibling_in_service(package: Package) -> Package | None:
    """The newest other version of this model that has a plan in service on any machine."""
    versions = [path for path in package.path.parent.iterdir() if path != package.path and (path / MANIFEST).is_file()]
    for path in sorted(versions, key=lambda path: natural_key(path.name), reverse=True):
        if any(plan.record.accepted for plan in plans.found(path)):
            return Package.open(path)
    return None


def _reports(measured: Mapping[str, Measured]) -> dict[str, Report]:
    baseline = BASELINE if BASELINE in measured else None
    serving = SERVING if SERVING in measured else None
    return {
        name: gates.report(measured, name, baseline=baseline, serving=serving) for name in measured if name != SERVING
    }


def _drawn(rows: Rowset, count: int) -> Rowset:
    """Rows for the gates, as they come: their shares are those of the traffic, unlike in calibration."""
    index = np.sort(np.random.default_rng(GATE_SEED).permutation(len(rows))[:count])
    return rows.take(index)


def _here(device: int | str) -> tuple[str, Device]:
    from engines import cuda

    return trt_module.build_version(trt_module.load()), cuda.describe(device)


def _of(package: Package, here: tuple[str, Device]) -> dict[Precision, PlanFile]:
    """Precision -> this package's newest plan for the GPU and TensorRT at hand, in service or not."""
    fit = plans.matching(package.path, here[0], here[1].compute_capability, package.manifest.files.get(builder.MODEL))
    return {plan.record.precision: plan for plan in sorted(fit, key=lambda plan: plan.record.created_ms)}


def _in_service(package: Package, serving: Package | None, here: tuple[str, Device]) -> tuple[Package, PlanFile] | None:
    """The plan that would be loaded now: this package's own, or that of the package in service for the same tensors."""
    for one in (package, serving):
        if one is not None and one.spec.tensors == package.spec.tensors:
            fit = plans.matching(one.path, here[0], here[1].compute_capability, one.manifest.files.get(builder.MODEL))
            if accepted := [plan for plan in fit if plan.record.accepted]:
                return one, max(accepted, key=lambda plan: plan.record.judged_ms)
    return None


@contextmanager
def _opened(package: Package, plan: PlanFile, device: int | str, max_batch: int) -> Iterator[Engine]:
    engine = load("trt", package, max_batch=max_batch, plan=plan, device=device)
    try:
        yield engine
    finally:
        engine.close()
