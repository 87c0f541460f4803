"""The gates reach every bucket, those too that no row of the recording would be run in."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from engines.build import pipeline, shapes
from engines.build.builder import Options
from tests.engines import fake_tensorrt
from tests.engines.build.test_pipeline import FakeBuilder, built, device, rows
from tests.models import tiny_package

__all__ = ["built", "device"]
"""Fixtures."""


def test_a_short_bucket_that_scores_wrongly_is_found_with_long_rows_alone(
    built: FakeBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tiny_package(tmp_path / "models", "ad", "din", name="ad")
    compute = fake_tensorrt.TrtContext.compute

    def wrong(context: fake_tensorrt.TrtContext) -> None:
        compute(context)
        if context.shapes["hist"] == (16, 8):
            ctypes.memset(context.addresses["score"], 0, 4)

    monkeypatch.setattr(fake_tensorrt.TrtContext, "compute", wrong)
    recorded = rows(package)
    sequences = {name: np.ones_like(recorded.features[name]) for name in shapes.sequences(package.spec)}
    recorded.features.update(sequences)  # type: ignore[attr-defined]
    made = Options(precision="fp32", batches=(4, 16), lengths=(8,))
    plan, report = pipeline.accept(package, made, recorded, sittings=1, gate_rows=64)
    assert not plan.record.accepted
    assert {check.bucket for check in report.failed} == {16}
    assert "max error at 16" in pipeline.to_json(report)["failed"]
