"""Plans below float32 as TensorRT really builds them: what the inspector shows, and how far the scores are off."""

from pathlib import Path

import pytest

import engines
from engines.build import gates, parity, pipeline
from engines.build.builder import Options
from engines.build.calibration import Rowset
from engines.build.quantize import Method
from engines.plans import Precision
from engines.train.reference import reference_package
from tests.models import random_batch

BUCKET = 32


@pytest.mark.parametrize(
    ("kind", "precision", "method"),
    [
        ("mlp", "fp16", "percentile"),
        ("mlp", "int8", "percentile"),
        ("mlp", "int8", "entropy"),
        ("din", "fp16", "percentile"),
        ("din", "int8", "percentile"),
    ],
)
def test_a_plan_is_in_the_precision_that_was_asked_for_and_near_the_model(
    tmp_path: Path, kind: str, precision: Precision, method: Method
) -> None:
    package = reference_package(tmp_path, kind)  # type: ignore[arg-type]
    calibration, rows = (Rowset(random_batch(package.spec, 1024, seed=seed)) for seed in range(2))
    options = Options(precision=precision, method=method, batches=(BUCKET,))
    plan = pipeline.build(package, options, calibration)
    shown = plan.record.recipe["shown"]
    assert shown
    assert set(shown.values()) <= {"shown", "fused"}
    assert "shown" in shown.values()
    assert plan.record.layers[precision] > 0
    trt = engines.load("trt", package, max_batch=BUCKET, plan=plan)
    ort = engines.load("ort", package, max_batch=BUCKET)
    found = parity.compare(
        parity.scored(ort.open_session, rows, BUCKET), parity.scored(trt.open_session, rows, BUCKET), None
    )
    trt.close()
    ort.close()
    assert found.not_finite == 0
    limits = gates.LIMITS[precision]
    assert 0.0 < found.max_abs <= limits.max_abs
    assert found.p99_abs <= limits.p99_abs
