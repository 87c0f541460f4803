"""What the builder makes of its options and of earlier builds, on a device that is not there."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from engines import plans
from engines.build import builder, compiler, inspector, pipeline, quantize, recipe, shapes
from engines.build.builder import Options
from engines.build.calibration import Rowset
from engines.build.compiler import Compiled
from engines.errors import LoadError
from engines.package import Package
from tests.engines.build.test_inspector import REAL
from tests.engines.build.test_pipeline import FakeBuilder, accept, built, device, package, rows

__all__ = ["built", "device", "package"]
"""Fixtures."""


def test_the_timing_cache_of_one_build_serves_the_next(package: Package, built: FakeBuilder) -> None:
    plan, _ = accept(package, "fp16")
    assert built.caches == [b"", b"tactics\x01"]
    assert plan.record.timing_cache_sha256 == plans.sha256(b"tactics\x01")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("suffix", ["timing", "layers"])
def test_what_is_kept_beside_a_plan_and_cannot_be_written_is_told_and_the_old_one_stays(
    suffix: str, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(precision="fp16", batches=(1, 8), keep_inspection=True)
    pipeline.build(package, options, rows(package))
    (kept,) = (package.path / "plans").rglob(f"*.{suffix}")
    before = kept.read_bytes()
    write = os.replace

    def full(source: str, target: Path) -> None:
        if target == kept:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LoadError, match=rf"{suffix}: cannot be written: .*No space left.*; check the free space"):
        pipeline.build(package, options, rows(package))
    assert kept.read_bytes() == before
    assert not list(kept.parent.glob(".*")), "nothing half-written stays"


@pytest.mark.usefixtures("built")
def test_buckets_that_are_not_asked_for_are_those_of_the_kind_of_event(package: Package) -> None:
    plan = pipeline.build(package, Options(precision="fp32"), None)
    assert [profile.batch for profile in plan.record.profiles] == list(shapes.usual_batches(package.spec))


def test_ranges_are_measured_on_the_drawn_rows_alone_by_the_asked_method(
    package: Package, built: FakeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """u0 to u29 have one event each, u30 has 270: half of the draw is theirs, who are a tenth of the recording."""
    asked: list[tuple[int, quantize.Method]] = []

    def calibrate(model: onnx.ModelProto, tensors: set[str], rows: Rowset, method: quantize.Method) -> dict[str, float]:
        asked.append((sum(user != "u30" for user in rows.users), method))
        return dict.fromkeys(tensors, 1.0)

    monkeypatch.setattr(quantize, "calibrate", calibrate)
    recorded = Rowset(rows(package).features, None, [f"u{min(i, 30)}" for i in range(300)])
    options = Options(precision="int8", batches=(8,), calibration_rows=40, method="entropy")
    record = pipeline.build(package, options, recorded).record
    assert asked == [(20, "entropy")]
    assert record.recipe["strata"] == {"rare": 20, "regular": 0, "active": 20}
    assert (record.recipe["rows"], record.recipe["method"]) == (40, "entropy")


def test_the_builder_is_told_everything(
    package: Package, device: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def compile_plan(model: bytes, **options: Any) -> Compiled:
        told.update(options)
        raise LoadError("enough")

    monkeypatch.setattr(builder, "compile_plan", compile_plan)
    options = Options(precision="tf32", batches=(2,), workspace_bytes=5 << 20, optimization_level=5)
    with pytest.raises(LoadError, match="enough"):
        pipeline.build(package, options, None)
    assert told["name"] == "criteo-1"
    assert told["precision"] == "tf32"
    assert (told["workspace_bytes"], told["optimization_level"]) == (5 << 20, 5)
    assert told["timing_cache"] == b""
    assert compiler.WORKSPACE_BYTES == 1 << 30


@pytest.mark.parametrize("profile", [0, 1])
def test_one_profile_that_is_not_what_was_asked_is_enough(profile: int) -> None:
    real = REAL["mlp-int8"]
    layers = inspector.parse(json.dumps(real["engine"]))
    made = recipe.Recipe("int8", onnx.ModelProto(), real["gemms"], real["float32"], {})
    compiled = Compiled(plan=b"", timing_cache=b"", layers=layers, inspected="", output="score", build_s=0.0)
    assert builder.verify(compiled, made) == {"hidden.0": "shown", "hidden.1": "shown"}
    mine = set(inspector.by_profile(layers)[profile])
    plain = [replace(one, inputs=("fp32",), outputs=("fp32",)) if one in mine else one for one in layers]
    with pytest.raises(LoadError, match=r"does not show it for hidden\.0, hidden\.1"):
        builder.verify(replace(compiled, layers=plain), made)
