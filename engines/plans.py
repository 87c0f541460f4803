"""TensorRT plans inside a model package, and the choice of the one that may run here.

A plan is bound to its TensorRT build and compute capability and carries no metadata, so beside each
`plans/<build>-sm<cc>-<precision>.plan` lies a `.json` with everything that is known about it. The sidecar is written
last: a plan without one does not exist, and a plan whose bytes do not match it is refused. A new plan is a candidate in
`plans/candidates/` until the gates have accepted it, so that the plan in service stays while it is judged.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from engines.errors import LoadError
from schemas.errors import UNREADABLE, remedy_of, unreadable

Precision = Literal["fp32", "tf32", "fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
FORMAT = 1
"""Version of the sidecar's layout."""
CANDIDATES = "candidates"
_AGAIN = "delete it and build the plan again"


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU a plan was built and timed on."""

    name: str
    compute_capability: str
    """Major and minor, such as 9.0."""
    uuid: str = ""
    driver: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket: the fixed shape (min = opt = max) of one optimisation profile, the one of its index in the record."""

    batch: int
    """Rows; a smaller batch is padded to this."""
    sequence: int | None = None
    """Length of the inputs' free sequence axis, None where the model has none."""
    shapes: dict[str, list[int]]
    """Input name -> full shape."""


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one plan. Bytes, milliseconds since the epoch and hexadecimal SHA-256 throughout."""

    format: int = FORMAT
    model: str
    version: str
    tensorrt: str
    device: Device
    precision: Precision
    profiles: list[Profile]
    output: str
    recipe: dict[str, Any]
    """How the precision was reached: islands or quantised nodes, calibration set and method, nodes kept in FP32."""
    layers: dict[str, int]
    """Layers of the built engine by data type, as the inspector reported them."""
    onnx_sha256: str
    """Of the package's model.onnx, not of the graph after the recipe."""
    timing_cache_sha256: str
    plan_sha256: str
    plan_bytes: int
    build_s: float
    created_ms: int
    accepted: bool = False
    """Whether the gates let it into service."""
    judged_ms: int = 0
    """When `accepted` was decided; 0 = not yet."""
    report: dict[str, Any] = {}
    """The gates' report: parity at every bucket, speed, and what failed."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    path: Path
    record: PlanRecord

    def read(self) -> bytes:
        """The plan. Raises `LoadError` when the file is missing or is not the one the sidecar describes."""
        try:
            plan = self.path.read_bytes()
        except OSError as error:
            build = _build_one(self.record.precision)
            raise LoadError(f"{self.path}: {error.strerror}; {remedy_of(error, build)}") from error
        digest = sha256(plan)
        if digest != self.record.plan_sha256:
            raise LoadError(
                f"{self.path}: sha256 {digest[:12]} is not {self.record.plan_sha256[:12]} of its sidecar;"
                f" {_build_one(self.record.precision)}"
            )
        return plan


def sha256(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def stem(tensorrt: str, compute_capability: str, precision: Precision) -> str:
    """File name of a plan without its suffix, such as 10.6.0-sm90-fp16."""
    return f"{tensorrt}-sm{compute_capability.replace('.', '')}-{precision}"


def write(root: Path, record: PlanRecord, plan: bytes | memoryview) -> PlanFile:
    """Put a plan into the package at `root`, among the candidates unless its record says that it is accepted.

    It replaces the one of the same build, capability and precision there. A reader at any moment finds the old plan, no
    plan, or the new plan, never a mixture. Raises `LoadError` when the disk refuses.
    """
    folder = root / "plans" if record.accepted else root / "plans" / CANDIDATES
    path = folder / (stem(record.tensorrt, record.device.compute_capability, record.precision) + ".plan")
    with _writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        _replace(path, plan)
        _replace(path.with_suffix(".json"), _dump(record))
    return PlanFile(path, record)


def write_beside(path: Path, data: bytes) -> None:
    """Keep what else a build leaves beside its plan, whole or not at all. Raises `LoadError` when the disk refuses."""
    with _writing(path):
        _replace(path, data)


def judge(plan: PlanFile, *, accepted: bool, report: dict[str, Any]) -> PlanFile:
    """Record the gates' verdict: an accepted plan goes into service, a refused one is (again) a candidate."""
    judged_ms = time.time_ns() // 1_000_000
    record = msgspec.structs.replace(plan.record, accepted=accepted, judged_ms=judged_ms, report=report)
    root = plan.path.parents[2 if plan.path.parent.name == CANDIDATES else 1]
    judged = write(root, record, plan.read())
    if judged.path != plan.path:
        plan.path.with_suffix(".json").unlink(missing_ok=True)
        plan.path.unlink(missing_ok=True)
    return judged


def found(root: Path) -> list[PlanFile]:
    """All plans of the package at `root`: those in service by name, then the candidates by name.

    Raises `LoadError` for a sidecar that cannot be read.
    """
    return list(_found(root))


def matching(root: Path, tensorrt: str, compute_capability: str, onnx_sha256: str | None) -> list[PlanFile]:
    """The plans of the package at `root` for this build, capability and (unless None) model file, as `found`."""
    return [
        plan
        for plan in found(root)
        if (plan.record.tensorrt, plan.record.device.compute_capability) == (tensorrt, compute_capability)
        and onnx_sha256 in (None, plan.record.onnx_sha256)
    ]


def choose(
    root: Path,
    *,
    tensorrt: str,
    compute_capability: str,
    precision: Precision | None = None,
    accepted: bool = True,
    onnx_sha256: str | None = None,
) -> PlanFile:
    """The plan that this TensorRT build may run on a device of this compute capability.

    Without a `precision` it is the one accepted last. With `accepted` only plans that passed the gates count, else the
    newest one; with `onnx_sha256` only plans of that model file. Raises `LoadError` with what is there and what to do.
    """
    here = f"TensorRT {tensorrt} on compute capability {compute_capability}"
    build = (tensorrt, compute_capability)
    plans = found(root)
    fit = [p for p in plans if (p.record.tensorrt, p.record.device.compute_capability) == build]
    if not fit:
        there = _list(f"{p.record.tensorrt} on {p.record.device.compute_capability}" for p in plans)
        raise LoadError(f"{root}: no plan for {here} (there are: {there}); {_build_one(precision)}")
    if precision is not None:
        others = _list(p.record.precision for p in fit)
        fit = [p for p in fit if p.record.precision == precision]
        if not fit:
            raise LoadError(f"{root}: no {precision} plan for {here} (there are: {others}); {_build_one(precision)}")
    if onnx_sha256 is not None:
        fit = [p for p in fit if p.record.onnx_sha256 == onnx_sha256]
        if not fit:
            raise LoadError(f"{root}: the plans for {here} were built from another model.onnx; {_build_one(precision)}")
    if accepted:
        judged = _list(f"{p.record.precision} {'rejected' if p.record.judged_ms else 'not judged'}" for p in fit)
        fit = [p for p in fit if p.record.accepted]
        if not fit:
            raise LoadError(
                f"{root}: no plan for {here} has passed the gates ({judged}); see `scorelane engine compare {root}`"
                f" for what failed, then {_build_one(precision)}"
            )
        return max(fit, key=lambda plan: plan.record.judged_ms)
    return max(fit, key=lambda plan: plan.record.created_ms)


def _found(root: Path) -> Iterator[PlanFile]:
    folder = root / "plans"
    for sidecar in (*_sidecars(folder), *_sidecars(folder / CANDIDATES)):
        try:
            record = msgspec.json.decode(sidecar.read_bytes(), type=PlanRecord)
        except OSError as error:
            raise LoadError(f"{sidecar}: cannot be read: {error.strerror}; {remedy_of(error, _AGAIN)}") from error
        except UNREADABLE as error:
            raise LoadError(f"{sidecar}: not a plan's description: {unreadable(error)}; {_AGAIN}") from error
        if record.format != FORMAT:
            raise LoadError(f"{sidecar}: format {record.format}, not {FORMAT}; {_AGAIN}")
        yield PlanFile(sidecar.with_suffix(".plan"), record)


def _sidecars(folder: Path) -> list[Path]:
    """Not by `glob`, to which a directory that cannot be read is an empty one."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise LoadError(f"{folder}: cannot be read: {error.strerror}; {remedy_of(error, 'check it')}") from error


def _build_one(precision: Precision | None) -> str:
    return f"build one on such a machine with `scorelane engine build MODEL --precision {precision or 'fp32'}`"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"


def _dump(record: PlanRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LoadError(f"{path}: cannot be written: {error}; check the free space and permissions") from error


def _replace(path: Path, data: bytes | memoryview) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
